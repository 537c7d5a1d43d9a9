"""Whether checkpoints are what they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tightfit
from tightfit.cli import run
from tightfit.errors import InputError
from tightfit.media.latents import LatentFile, save_latent
from tightfit.weigh.files.hash_lists import Difference, file_hash, list_beside


def checkpoint(path: Path, value: float = 1.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = torch.randn(128, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_file({"w": values, "b": torch.full((3,), value)}, path)
    return path


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_folder_is_verified_file_by_file(tmp_path: Path) -> None:
    """At any depth; one that is cut off is one of them, and does not stop the rest."""
    one, two = (checkpoint(tmp_path / "m" / name / "a.safetensors") for name in ("x", "y"))
    assert tightfit.verify(tmp_path / "m", write=True).good
    assert [each.against for each in tightfit.verify(tmp_path / "m").files] == ["list", "list"]
    one.write_bytes(one.read_bytes()[:-1])
    flip(two, -1)
    done = tightfit.verify(tmp_path / "m")
    assert not done.good
    assert done.files[0].error is not None
    assert "1 B are missing" in done.files[0].error
    assert done.files[1].differences[0] == Difference("w", "changed")


def test_files_that_hash_themselves_need_no_list(tmp_path: Path) -> None:
    """Packed ones tensor by tensor, latents as a whole."""
    packed, latent = tmp_path / "p.safetensors", tmp_path / "z.safetensors"
    tightfit.pack(checkpoint(tmp_path / "a.safetensors"), packed)
    made = LatentFile(
        latent=torch.zeros(1, 4, 2, 2), vae="v", ratio=(1, 8), dtype="x", width=8, height=8
    )
    save_latent(latent, made)
    assert [each.against for each in tightfit.verify([packed, latent]).files] == [
        *("packed", "latent")
    ]
    flip(packed, -1)
    flip(latent, -1)
    names = [each.differences[0].name for each in tightfit.verify([packed, latent]).files]
    assert names == ["b", "__file__"]


def test_a_file_in_a_hubs_cache_is_held_against_its_name(tmp_path: Path) -> None:
    """Which is the hash that the hub tells."""
    real = checkpoint(tmp_path / "blobs" / "x")
    real = real.rename(real.with_name(file_hash(real)))
    link = tmp_path / "model.safetensors"
    link.symlink_to(real)
    assert tightfit.verify(link).files[0].against == "cache"
    flip(real, -1)
    assert not tightfit.verify(link).good


def test_nothing_to_compare_with_is_said(tmp_path: Path) -> None:
    """It is no success; so are a folder without weights, and a path that is not there."""
    path = checkpoint(tmp_path / "a.safetensors")
    with pytest.raises(InputError, match=r"nothing says what it should be.*verify --write"):
        tightfit.verify(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no"):
        tightfit.verify(tmp_path / "empty")
    with pytest.raises(InputError, match="no such file"):
        tightfit.verify(tmp_path / "gone")


def test_an_index_stands_for_its_shards(tmp_path: Path) -> None:
    """Each has a list of its own."""
    for number in (0, 1):
        save_file({f"t{number}": torch.ones(2)}, tmp_path / f"{number}.safetensors")
    index = tmp_path / "m.safetensors.index.json"
    places = {"t0": "0.safetensors", "t1": "1.safetensors"}
    index.write_text(json.dumps({"weight_map": places}))
    assert len(tightfit.verify(index, write=True).files) == 2
    assert list_beside(tmp_path / "1.safetensors").is_file()
    assert tightfit.verify(index).good


def test_the_command_says_what_is_good_and_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What differs goes to stderr, also with -q; then the exit code is 1."""
    good, bad = checkpoint(tmp_path / "a.safetensors"), checkpoint(tmp_path / "b.safetensors")
    assert run(["verify", str(good), str(bad), "--write"]) == 0
    assert "hashes written to a.safetensors.sha256.json" in capsys.readouterr().out
    flip(bad, -1)
    assert run(["verify", str(good), str(bad)]) == 1
    said = capsys.readouterr()
    assert "a.safetensors: 2 tensors" in said.out
    assert "b.safetensors: `w` (changed), `__file__` (changed)" in said.err
    assert run(["verify", str(good), str(bad), "-q"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "b.safetensors" in said.err
