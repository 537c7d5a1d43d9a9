"""Latents on disk."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tightfit.errors import InputError, JobFailed
from tightfit.media import files
from tightfit.media.latents import LatentFile, load_latent, probe_latent, save_latent

from .makers import cut

KEYS = {
    "version": "1",
    "vae": "toy",
    "ratio": "[1, 8]",
    "dtype": "float32",
    "width": "64",
    "height": "32",
}


def latent_file(dtype: torch.dtype = torch.bfloat16, **changes: Any) -> LatentFile:
    """A clip of 14 frames, padded to 17, with everything said."""
    generator = torch.Generator().manual_seed(0)
    whole = LatentFile(
        latent=torch.randn(1, 16, 5, 4, 8, generator=generator).to(dtype),
        vae="wan2.1-vae",
        vae_hash="ab" * 32,
        scale=(0.1, 1 / 3),
        shift=(-0.7571,),
        ratio=(4, 8),
        dtype="float32",
        width=60,
        height=30,
        frames=14,
        fps=Fraction(24000, 1001),
        padding={"right": 4, "bottom": 2, "end": 3, "mode": "repeat"},
        alpha=torch.rand(1, 1, 30, 60, generator=generator),
        background=(1.0, 0.5, 0.0),
    )
    return dataclasses.replace(whole, **changes)


def facts(file: LatentFile) -> dict[str, Any]:
    """All fields but the tensors."""
    values = {part.name: getattr(file, part.name) for part in dataclasses.fields(file)}
    return {name: value for name, value in values.items() if name not in {"latent", "alpha"}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_f05_a_latent_comes_back_whole(tmp_path: Path, dtype: torch.dtype) -> None:
    """Every bit, the dtype, the mask, and all that is said about it."""
    saved = latent_file(dtype)
    save_latent(tmp_path / "a.safetensors", saved)
    loaded = load_latent(tmp_path / "a.safetensors")
    assert loaded.latent.dtype == dtype
    assert torch.equal(loaded.latent, saved.latent)
    assert loaded.alpha is not None
    assert torch.equal(loaded.alpha, saved.alpha)
    assert facts(loaded) == facts(saved)


def test_what_is_unknown_comes_back_as_none(tmp_path: Path) -> None:
    """A picture from a VAE without scale or hash."""
    saved = LatentFile(
        latent=torch.zeros(1, 4, 4, 8),
        vae="toy",
        ratio=(1, 8),
        dtype="float32",
        width=64,
        height=32,
    )
    save_latent(tmp_path / "a.safetensors", saved)
    loaded = load_latent(tmp_path / "a.safetensors")
    assert facts(loaded) == facts(saved)
    assert loaded.alpha is None
    assert loaded.fps is None


def test_the_file_is_plain_safetensors(tmp_path: Path) -> None:
    """Other programs find the tensor `latent` and strings."""
    save_latent(tmp_path / "a.safetensors", latent_file())
    with safe_open(tmp_path / "a.safetensors", "pt") as handle:
        assert set(handle.keys()) == {"latent", "alpha"}
        metadata = handle.metadata()
    assert metadata["version"] == "1"
    assert metadata["fps"] == "24000/1001"
    assert json.loads(metadata["padding"])["end"] == 3


def test_the_same_latent_gives_the_same_bytes(tmp_path: Path) -> None:
    """The library writes its metadata in random order; we do not."""
    written = set()
    for number in range(5):
        save_latent(tmp_path / f"{number}.safetensors", latent_file())
        written.add((tmp_path / f"{number}.safetensors").read_bytes())
    assert len(written) == 1


def test_a_transposed_latent_is_written_as_it_looks(tmp_path: Path) -> None:
    """Views need not be contiguous."""
    latent = torch.arange(32.0).view(1, 4, 4, 2).transpose(2, 3)
    save_latent(tmp_path / "a.safetensors", latent_file(latent=latent))
    assert torch.equal(load_latent(tmp_path / "a.safetensors").latent, latent)


def test_a_probe_reads_no_data(tmp_path: Path) -> None:
    """Shape and dtype are on the meta device; NaN in the data goes unseen."""
    saved = latent_file()
    save_latent(tmp_path / "a.safetensors", saved)
    seen = probe_latent(tmp_path / "a.safetensors")
    assert seen.latent.device.type == "meta"
    assert (seen.latent.shape, seen.latent.dtype) == (saved.latent.shape, torch.bfloat16)
    assert seen.alpha is not None
    assert seen.alpha.shape == (1, 1, 30, 60)
    assert facts(seen) == facts(saved)


@pytest.mark.parametrize("read", [load_latent, probe_latent])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.999])
def test_f03_a_latent_that_is_cut_off_is_refused(tmp_path: Path, read: Any, share: float) -> None:
    """In its header or in its data."""
    save_latent(tmp_path / "a.safetensors", latent_file())
    with pytest.raises(InputError, match=r"a\.safetensors as a latent: it is no whole safetensors"):
        read(cut(tmp_path / "a.safetensors", share))


@pytest.mark.parametrize("read", [load_latent, probe_latent])
@pytest.mark.parametrize(
    ("tensors", "metadata", "says"),
    [
        ({"noise": torch.zeros(1)}, KEYS, "no tensor `latent`, .* but: noise"),
        ({"latent": torch.zeros(1)}, None, "metadata lack 'version'"),
        ({"latent": torch.zeros(1)}, {**KEYS, "ratio": "x"}, "metadata make no sense"),
        ({"latent": torch.zeros(1)}, {**KEYS, "width": "wide"}, "metadata make no sense"),
        ({"latent": torch.zeros(1)}, {**KEYS, "fps": "1/0"}, "metadata make no sense"),
    ],
)
def test_a_file_that_is_no_latent_is_refused(
    tmp_path: Path, read: Any, tensors: dict, metadata: dict | None, says: str
) -> None:
    """The message says what is missing."""
    save_file(tensors, tmp_path / "a.safetensors", metadata=metadata)
    with pytest.raises(InputError, match=says):
        read(tmp_path / "a.safetensors")


def test_a_picture_is_no_latent(tmp_path: Path) -> None:
    """Nor is any other file."""
    (tmp_path / "a.safetensors").write_bytes(b"\x89PNG\r\n\x1a\n" * 20)
    with pytest.raises(InputError, match="no whole safetensors file"):
        load_latent(tmp_path / "a.safetensors")


def test_a_later_version_with_more_keys_is_read(tmp_path: Path) -> None:
    """Later versions only add keys."""
    metadata = {**KEYS, "version": "3", "colour": "of magic"}
    save_file({"latent": torch.zeros(1, 4, 4, 8)}, tmp_path / "a.safetensors", metadata=metadata)
    assert load_latent(tmp_path / "a.safetensors").version == 3


def test_c01_a_latent_of_nan_is_neither_written_nor_read(tmp_path: Path) -> None:
    """Both say how many values."""
    bad = torch.zeros(1, 4, 4, 8)
    bad[0, 0] = float("nan")
    with pytest.raises(JobFailed, match="32 of 128 values are NaN"):
        save_latent(tmp_path / "a.safetensors", latent_file(latent=bad))
    assert list(tmp_path.iterdir()) == []
    save_file({"latent": bad}, tmp_path / "a.safetensors", metadata=KEYS)
    with pytest.raises(InputError, match="32 of 128 values are NaN"):
        load_latent(tmp_path / "a.safetensors")


def test_f07_a_disk_too_small_is_said_with_the_bytes_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file stays."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"old")
    usage = files.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage._replace(free=1024))
    with pytest.raises(InputError, match=r"disk is full; the file needs \d+\.\d KiB and 1\.0 KiB"):
        save_latent(path, latent_file())
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    "changes",
    [{"width": 0}, {"height": -5}, {"frames": 0}, {"fps": Fraction(0)}, {"fps": Fraction(-3)}]
    + [{"latent": torch.zeros(1, 16, 0, 4, 8)}, {"alpha": torch.zeros(1, 1, 3, 3)}],
)
def test_a_size_or_rate_that_nothing_can_have_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """An edited file is refused when it is read, before any model is loaded."""
    save_latent(tmp_path / "a.safetensors", latent_file(**changes))
    with pytest.raises(InputError, match="make no sense"):
        probe_latent(tmp_path / "a.safetensors")
