"""Writing films."""

from __future__ import annotations

import errno
from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch

from tightfit.errors import InputError, JobFailed
from tightfit.media.clip import read_clip
from tightfit.media.clip_writer import ClipWriter

from .makers import grey_frames


def chunk(count: int, width: int = 64, height: int = 48) -> torch.Tensor:
    return torch.from_numpy(grey_frames(count, width, height)).permute(0, 3, 1, 2)


def test_chunks_make_one_film(tmp_path: Path) -> None:
    """Bytes and floats alike; all frames, the rate, and colours within two steps."""
    pixels = chunk(9)
    pixels[:, 0] = 200
    with ClipWriter(tmp_path / "a.mp4", 64, 48, Fraction(24000, 1001)) as writer:
        writer.write(pixels[:4])
        writer.write(pixels[4:].float() / 255)
    assert writer.frames == 9
    assert writer.notes == ()
    clip = read_clip(tmp_path / "a.mp4")
    assert clip.pixels.shape == pixels.shape
    assert clip.fps == Fraction(24000, 1001)
    assert (clip.pixels.float() - pixels.float()).abs().max() <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_the_film_says_its_colours(tmp_path: Path) -> None:
    """BT.709, limited range, so that players do not guess."""
    with ClipWriter(tmp_path / "a.mp4", 64, 48, Fraction(24)) as writer:
        writer.write(chunk(1))
    with av.open(str(tmp_path / "a.mp4")) as container:
        frame = next(container.decode(video=0))
        assert (frame.colorspace, frame.color_primaries, frame.color_trc) == (1, 1, 1)
        assert (frame.color_range, frame.format.name) == (1, "yuv420p")


@pytest.mark.parametrize(("width", "height"), [(641, 480), (64, 47), (1, 1)])
def test_m15_an_odd_size_is_written_exactly(tmp_path: Path, width: int, height: int) -> None:
    """As 4:4:4, which the notes say before the first frame; all frames are there."""
    writer = ClipWriter(tmp_path / "a.mp4", width, height, Fraction(24))
    assert writer.notes[0].startswith(f"wrote 4:4:4 colour for the odd size {width}x{height}")
    pixels = chunk(3, width, height)
    with writer:
        writer.write(pixels)
    clip = read_clip(tmp_path / "a.mp4")
    assert clip.pixels.shape == (3, 3, height, width)
    assert (clip.pixels.float() - pixels.float()).abs().max() <= 3


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_f07_an_error_leaves_the_old_film(tmp_path: Path, error: type[BaseException]) -> None:
    """Nothing of the new one stays."""
    path = tmp_path / "a.mp4"
    path.write_bytes(b"old")
    writer = ClipWriter(path, 64, 48, Fraction(24))
    with pytest.raises(error):
        write_then(writer, chunk(3), error())
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.mp4"]


def test_f07_a_full_disk_is_said(tmp_path: Path) -> None:
    """What FFmpeg reports is the system's error."""
    full = av.error.OSError(errno.ENOSPC, "No space left on device")
    writer = ClipWriter(tmp_path / "a.mp4", 64, 48, Fraction(24))
    with pytest.raises(InputError, match="the disk is full"):
        write_then(writer, chunk(3), full)
    assert list(tmp_path.iterdir()) == []


def test_c01_a_frame_of_nan_leaves_no_film(tmp_path: Path) -> None:
    """The last chunk of a long decode counts as much as the first."""
    frames = chunk(3).float() / 255
    frames[2] = float("nan")
    with pytest.raises(JobFailed, match="9216 of 9216 values are NaN"):
        write_one_by_one(ClipWriter(tmp_path / "a.mp4", 64, 48, Fraction(24)), frames)
    assert list(tmp_path.iterdir()) == []


def test_a_frame_of_another_size_is_refused(tmp_path: Path) -> None:
    """Both sizes are named."""
    with (
        pytest.raises(JobFailed, match="a frame of 62x48 came, 64x48 was announced"),
        ClipWriter(tmp_path / "a.mp4", 64, 48, Fraction(24)) as writer,
    ):
        writer.write(chunk(1, 62, 48))


def test_a_film_without_frames_is_not_written(tmp_path: Path) -> None:
    """An MP4 of nothing would not open."""
    with (
        pytest.raises(JobFailed, match="no frame came"),
        ClipWriter(tmp_path / "a.mp4", 64, 48, Fraction(24)),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [(16386, 48), (48, 16386), (0, 48)])
def test_a_size_beyond_the_format_is_refused_before_the_work(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    """And what to do instead."""
    with pytest.raises(InputError, match="folder of frames"):
        ClipWriter(tmp_path / "a.mp4", *size, Fraction(24))


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    """What has no frames, and what has no name here."""
    with pytest.raises(InputError, match=r"must end in \.mp4, \.mkv, \.apng, \.webp"):
        ClipWriter(tmp_path / "a.txt", 64, 48, Fraction(24))


def write_then(writer: ClipWriter, frames: torch.Tensor, error: BaseException) -> None:
    """Write `frames`, then raise `error` in the body."""
    with writer:
        writer.write(frames)
        raise error


def write_one_by_one(writer: ClipWriter, frames: torch.Tensor) -> None:
    """Write `frames` in chunks of one."""
    with writer:
        for frame in frames:
            writer.write(frame[None])
