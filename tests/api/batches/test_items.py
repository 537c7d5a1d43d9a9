"""Which file becomes which."""

from __future__ import annotations

from pathlib import Path

import pytest

from tightfit.api.batches.items import LATENTS, PICTURES, find_items, is_batch
from tightfit.errors import InputError, UsageError


def files(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"x")
    return folder


def outs(sources: list[Path], out: Path) -> list[tuple[str, str]]:
    items = find_items(sources, out, PICTURES, lambda _: ".safetensors")
    return [(each.source.name, each.out.name) for each in items]


def test_a_folder_gives_its_media_in_natural_order(tmp_path: Path) -> None:
    """Hidden files, other files and folders are left out."""
    folder = files(tmp_path / "in", "10.png", "2.jpg", "1.MP4", ".a.png", "notes.txt")
    files(folder / "more", "b.png")
    named = [("1.MP4", "1.safetensors"), ("2.jpg", "2.safetensors"), ("10.png", "10.safetensors")]
    assert outs([folder], tmp_path / "out") == named


def test_inputs_that_share_a_name_keep_their_endings(tmp_path: Path) -> None:
    """Neither overwrites the other."""
    folder = files(tmp_path / "in", "a.png", "a.jpg", "b.png")
    assert [out for _, out in outs([folder], tmp_path / "out")] == [
        *("a.jpg.safetensors", "a.png.safetensors", "b.safetensors")
    ]
    other = files(tmp_path / "other", "b.png")
    with pytest.raises(UsageError, match=r"two of the inputs are called b\.png"):
        outs([folder / "b.png", other / "b.png"], tmp_path / "out")


def test_a_pattern_is_matched_and_a_file_is_taken_once(tmp_path: Path) -> None:
    """A file whose own name looks like a pattern is that file."""
    folder = files(tmp_path / "in", "a1.png", "a2.png", "[b].png")
    found = outs([folder / "a*.png", folder / "a1.png", folder / "[b].png"], tmp_path / "out")
    assert [source for source, _ in found] == ["a1.png", "a2.png", "[b].png"]


def test_nothing_to_do_is_refused(tmp_path: Path) -> None:
    """A folder without media, a pattern that matches nothing, and no input."""
    folder = files(tmp_path / "in", "notes.txt")
    with pytest.raises(InputError, match="holds no file that ends in"):
        outs([folder], tmp_path / "out")
    with pytest.raises(InputError, match="no file matches"):
        outs([folder / "*.png"], tmp_path / "out")
    with pytest.raises(UsageError, match="a batch takes"):
        outs([], tmp_path / "out")


def test_an_output_is_no_input(tmp_path: Path) -> None:
    """Or a batch of latents into their own folder would eat itself."""
    folder = files(tmp_path / "in", "a.safetensors")
    with pytest.raises(UsageError, match="is an input and an output"):
        find_items([folder], folder, LATENTS, lambda _: ".safetensors")


def test_when_a_batch_is_meant(tmp_path: Path) -> None:
    """One clip of frames and one latent stay what they were."""
    folder = files(tmp_path / "in", "a.png")
    one, made = folder / "a.png", tmp_path / "z.safetensors"
    for sources, out, frames, meant in (
        ([one], made, True, False),
        ([folder], made, True, False),
        ([folder], tmp_path / "out", True, True),
        ([one], folder, True, True),
        ([one, one], tmp_path / "out", True, True),
        ([folder / "*.png"], tmp_path / "out", True, True),
        ([one], tmp_path / "frames", False, False),
        ([one], folder, False, False),
        ([folder], tmp_path / "out", False, True),
    ):
        assert is_batch(sources, out, folder_is_one=frames) == meant, (sources, out)
