"""Which files tensors are mapped from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tightfit.errors import InputError
from tightfit.place.streaming import files as module
from tightfit.place.streaming.files import Files, Stretch, bytes_of

SHAPES = {"a": (300, 7), "b": (5000,), "c": (3, 3)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_file({n: torch.randn(s) for n, s in SHAPES.items()}, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


@pytest.fixture
def loaded(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path)


@pytest.fixture
def files(loaded: dict[str, torch.Tensor]) -> Iterator[Files]:
    found = Files()
    yield found
    found.close()


def read(stretch: Stretch | None, size: int) -> torch.Tensor:
    assert stretch is not None
    target = torch.zeros(size, dtype=torch.uint8)
    stretch.file.read(target, stretch.offset)
    return target


def test_a_tensor_of_a_file_is_found_there(
    files: Files, loaded: dict[str, torch.Tensor], path: Path
) -> None:
    """All its bytes, also those of a part of it or of another view."""
    for tensor in (*loaded.values(), loaded["a"][20:31], loaded["b"].view(50, 100).T):
        assert files.is_mapped(tensor)
        stretch = files.find(tensor)
        assert stretch is not None
        assert stretch.file.path == str(path)
        assert torch.equal(read(stretch, tensor.nbytes), bytes_of(tensor))


def test_what_is_in_memory_alone_is_in_no_file(
    files: Files, loaded: dict[str, torch.Tensor]
) -> None:
    """Of our own, empty, or of a mapping that came later."""
    for tensor in (torch.randn(9), loaded["a"].clone(), loaded["a"][:0]):
        assert not files.is_mapped(tensor)
        assert files.find(tensor) is None


def test_a_mapping_that_was_written_to_is_not_its_file(
    files: Files, loaded: dict[str, torch.Tensor]
) -> None:
    """Only the pages that were: the rest is still there."""
    loaded["b"][4000] += 1
    assert files.find(loaded["b"]) is None
    assert files.find(loaded["b"][:100]) is not None


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_a_file_that_is_gone_is_not_found(
    files: Files, loaded: dict[str, torch.Tensor], path: Path, way: str
) -> None:
    """Nor another one by its name."""
    assert files.is_mapped(loaded["a"])
    before = path.read_bytes()
    path.rename(path.with_name("elsewhere"))
    if way == "replaced":
        path.write_bytes(before)
    assert files.find(loaded["a"]) is None


def test_a_file_that_was_written_over_in_between_is_not_read(
    files: Files, loaded: dict[str, torch.Tensor], path: Path
) -> None:
    """A read after the change says so, whatever it has got."""
    stretch = files.find(loaded["b"])
    now = path.stat()
    with path.open("r+b") as file:
        file.seek(now.st_size - 100)
        file.write(b"x" * 10)
    os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns + 1))
    with pytest.raises(InputError, match=r"w\.safetensors` has changed"):
        read(stretch, loaded["b"].nbytes)


def test_a_file_that_was_cut_is_not_read(
    files: Files, loaded: dict[str, torch.Tensor], path: Path
) -> None:
    """Also where what is wanted is still there."""
    stretch = files.find(loaded["b"])
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(InputError, match="has changed"):
        read(stretch, loaded["b"].nbytes)
    with pytest.raises(InputError, match="has changed"):
        read(stretch, 8)


def test_what_the_system_says_is_passed_on(
    files: Files, loaded: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the name of the file."""

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    stretch = files.find(loaded["a"])
    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(InputError, match=r"w\.safetensors`: Input/output error"):
        read(stretch, 4)


def test_short_reads_are_carried_on(
    files: Files, loaded: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a system may do with large ones."""
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: whole(fd, [into[0][:999]], at))
    tensor = loaded["b"]
    assert torch.equal(read(files.find(tensor), tensor.nbytes), bytes_of(tensor))


@pytest.mark.parametrize("lacking", ["_MAPS", "_PAGES"])
def test_a_system_that_does_not_tell_has_no_files(
    loaded: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    """What may have been written to is not taken from a file."""
    monkeypatch.setattr(module, lacking, Path("/nowhere"))
    assert Files().find(loaded["a"]) is None


def test_handles_are_closed(loaded: dict[str, torch.Tensor]) -> None:
    """As many are open as before, also when closed twice."""
    before = len(os.listdir("/proc/self/fd"))
    files = Files()
    assert files.find(loaded["a"]) is not None
    assert len(os.listdir("/proc/self/fd")) == before + 1
    files.close()
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before
