"""Folders of frames."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from PIL import Image

from tightfit.errors import InputError, JobFailed
from tightfit.media.frame_folder import FrameFolderWriter, frame_paths, read_frame_folder

from .makers import cut, grey_frames, noise


def put(folder: Path, *numbers: int, width: int = 64, height: int = 48) -> None:
    """frame_K.png, grey of value 8K."""
    for number in numbers:
        pixels = grey_frames(number + 1, width, height)[-1]
        Image.fromarray(pixels).save(folder / f"frame_{number}.png")


def test_m10_frames_are_read_in_natural_order(tmp_path: Path) -> None:
    """2 comes before 10."""
    put(tmp_path, 10, 2, 11)
    assert [path.name for path in frame_paths(tmp_path)] == [
        "frame_2.png",
        "frame_10.png",
        "frame_11.png",
    ]
    clip = read_frame_folder(tmp_path, fps=Fraction(8))
    assert clip.pixels[:, 0, 0, 0].tolist() == [16, 80, 88]
    assert clip.times == (0, 0.125, 0.25)
    assert clip.fps == 8


def test_m10_a_frame_of_another_size_is_named_before_any_is_decoded(tmp_path: Path) -> None:
    """Even where an earlier frame is damaged behind its header."""
    put(tmp_path, 2, 10)
    put(tmp_path, 11, width=65)
    cut(tmp_path / "frame_2.png", 0.8)
    says = r"frame_11\.png is 65x48, the others are 64x48"
    with pytest.raises(InputError, match=says):
        frame_paths(tmp_path)
    with pytest.raises(InputError, match=says):
        read_frame_folder(tmp_path)


def test_a_damaged_frame_is_named(tmp_path: Path) -> None:
    """Not the folder alone."""
    Image.fromarray(noise(48, 64, 3)).save(tmp_path / "frame_1.png")
    cut(tmp_path / "frame_1.png", 0.8)
    with pytest.raises(InputError, match=r"frame_1\.png"):
        read_frame_folder(tmp_path)


def test_a_part_of_a_folder_is_read(tmp_path: Path) -> None:
    """Times stay those of the whole; every second frame plays at half the rate."""
    put(tmp_path, *range(1, 9))
    clip = read_frame_folder(tmp_path, fps=Fraction(10), frames=slice(2, 7, 2))
    assert clip.pixels[:, 0, 0, 0].tolist() == [24, 40, 56]
    assert clip.times == (0.2, 0.4, 0.6)
    assert clip.fps == 5
    with pytest.raises(InputError, match="8 frames, none of them"):
        read_frame_folder(tmp_path, frames=slice(8, 9))


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    """And so is no folder."""
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="holds no pictures"):
        frame_paths(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        frame_paths(tmp_path / "missing")


def test_written_frames_read_back_bit_for_bit(tmp_path: Path) -> None:
    """Chunk by chunk, numbered from 1."""
    pixels = torch.from_numpy(noise(5, 3, 8, 6))
    with FrameFolderWriter(tmp_path / "out") as writer:
        writer.write(pixels[:2])
        writer.write(pixels[2:].float() / 255)
    assert (writer.frames, writer.notes) == (5, ())
    assert sorted(path.name for path in (tmp_path / "out").iterdir())[0] == "frame_00001.png"
    assert torch.equal(read_frame_folder(tmp_path / "out").pixels, pixels)


def test_c01_a_frame_of_nan_leaves_no_folder(tmp_path: Path) -> None:
    """Whole or absent, as with files."""
    frames = torch.zeros(2, 3, 4, 4)
    frames[1] = float("inf")
    with pytest.raises(JobFailed, match="48 of 48 values"):
        write_one_by_one(FrameFolderWriter(tmp_path / "out"), frames)
    assert list(tmp_path.iterdir()) == []


def test_no_frames_make_no_folder(tmp_path: Path) -> None:
    """Nothing to write is a failed job."""
    with pytest.raises(JobFailed, match="no frame came"), FrameFolderWriter(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_files_is_refused_before_the_work(tmp_path: Path) -> None:
    """The writer does not even start."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        FrameFolderWriter(tmp_path)


def write_one_by_one(writer: FrameFolderWriter, frames: torch.Tensor) -> None:
    """Write `frames` in chunks of one."""
    with writer:
        for frame in frames:
            writer.write(frame[None])


def test_frames_with_alpha_keep_it(tmp_path: Path) -> None:
    """A PNG holds four channels."""
    with FrameFolderWriter(tmp_path / "out") as folder:
        folder.write(torch.rand(2, 4, 5, 7))
    with Image.open(tmp_path / "out" / "frame_00002.png") as picture:
        assert (picture.mode, picture.size) == ("RGBA", (7, 5))
