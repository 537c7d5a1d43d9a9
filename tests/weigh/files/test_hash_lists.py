"""Hash lists."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tightfit.errors import InputError
from tightfit.weigh.files.hash_lists import (
    HEADER,
    WHOLE,
    Difference,
    differences,
    file_hash,
    hashes_of,
    known_hash,
    list_beside,
    read_list,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "a.safetensors"
    save_file({"a": torch.arange(6.0), "b": torch.ones(2, dtype=torch.int8)}, found)
    return found


def test_hashes_are_of_the_bytes_in_the_file(path: Path) -> None:
    """Of each tensor, of the header, and of it all."""
    found = hashes_of(path)
    assert set(found) == {"a", "b", HEADER, WHOLE}
    assert found["a"] == sha256(torch.arange(6.0).numpy().tobytes()).hexdigest()
    assert found["b"] == sha256(b"\1\1").hexdigest()
    assert found[WHOLE] == sha256(path.read_bytes()).hexdigest() == file_hash(path)
    assert found[HEADER] == sha256(path.read_bytes()[:-26]).hexdigest()


def test_gguf_is_hashed_tensor_by_tensor(tmp_path: Path) -> None:
    """As its blocks lie there."""
    import gguf

    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(str(path), "flux")
    values = np.arange(32, dtype=np.float32)
    writer.add_tensor("a.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert hashes_of(path)["a.weight"] == sha256(values.tobytes()).hexdigest()


def test_bytes_are_told_once(path: Path) -> None:
    """A bar ends where the file does."""
    told: list[int] = []
    hashes_of(path, tell=told.append)
    assert sum(told) == path.stat().st_size


def test_differences_are_named_by_kind() -> None:
    """Tensors come first; a list may lack the header and the whole."""
    listed = {"a": "1", "b": "2", WHOLE: "3"}
    found = {"a": "1", "b": "9", "c": "4", WHOLE: "8", HEADER: "7"}
    assert differences(listed, found) == (
        Difference("b", "changed"),
        Difference("c", "unlisted"),
        Difference(WHOLE, "changed"),
    )
    assert differences({"a": "1", "z": "1"}, {"a": "1"}) == (Difference("z", "missing"),)
    assert differences({"a": "1"}, {"a": "1", HEADER: "2", WHOLE: "3"}) == ()


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": "xyz"}', "[" * 9999])
def test_a_damaged_list_is_refused_by_name(path: Path, text: str) -> None:
    """It is not taken for a file that nobody hashed."""
    list_beside(path).write_text(text)
    with pytest.raises(InputError, match=r"a\.safetensors\.sha256\.json: it is no"):
        read_list(path)


def test_a_hash_is_known_by_a_list_or_by_a_hubs_cache(path: Path, tmp_path: Path) -> None:
    """There, links lead to files that are named by their hash."""
    assert known_hash(path) is None
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    told = file_hash(path)
    link = tmp_path / "model.safetensors"
    link.symlink_to(path.rename(blobs / told))
    assert known_hash(link) == told
    list_beside(link).write_text(json.dumps({WHOLE: "0" * 64}))
    assert known_hash(link) == "0" * 64
