"""The writer that a name asks for."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tightfit.errors import InputError, JobFailed, TightfitError, UsageError
from tightfit.media.clip import read_clip
from tightfit.media.frame_folder import read_frame_folder
from tightfit.media.outputs import FRAME_KINDS, Terms, check_frames, open_frames
from tightfit.media.picture import read_picture
from tightfit.media.picture_writer import read_text, write_picture
from tightfit.media.sound import Sound

from .makers import noise


def deep(frames: int, channels: int, height: int = 18, width: int = 21) -> torch.Tensor:
    """Random frames [T,C,H,W] of 16 bits."""
    values = np.random.default_rng(0).integers(0, 65536, (frames, channels, height, width))
    return torch.from_numpy(values.astype(np.uint16))


def write(path: Path, frames: torch.Tensor, **terms: object) -> tuple[str, ...]:
    """In two pieces, at 24000/1001 a second."""
    count, channels, height, width = frames.shape
    with open_frames(
        path,
        width=width,
        height=height,
        frames=count,
        fps=Fraction(24000, 1001),
        alpha=channels == 4,
        terms=Terms(**terms),  # type: ignore[arg-type]
    ) as writer:
        writer.write(frames[:2])
        if count > 2:
            writer.write(frames[2:])
    return writer.notes


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize(
    ("name", "bits"),
    [("a.mkv", 8), ("a.mkv", 16), ("a.apng", 8), ("frames", 8), ("frames", 16), ("a.webp", 8)],
)
def test_what_is_lossless_comes_back_bit_for_bit(
    tmp_path: Path, name: str, bits: int, channels: int
) -> None:
    """Colours and alpha, of 8 and 16 bits, at sizes that no chroma fits."""
    frames = deep(5, channels)
    if bits == 8:
        frames = (frames.int() >> 8).to(torch.uint8)
    if channels == 4:  # colour under full transparency is never seen
        frames[:, 3].view(torch.int16 if bits == 16 else torch.int8).bitwise_or_(1)
    assert write(tmp_path / name, frames, bits=bits) == ()
    read = read_frame_folder if name == "frames" else read_clip
    clip = read(tmp_path / name, keep_alpha=True, background=(0.0, 0.0, 0.0))
    assert clip.pixels.dtype == frames.dtype
    if name != "frames":
        assert abs(clip.fps - Fraction(24000, 1001)) < Fraction(1, 20)
    if channels == 3:
        assert torch.equal(clip.pixels, frames)
        assert clip.alpha is None
        return
    assert clip.alpha is not None
    assert torch.equal(clip.alpha, frames[:, 3:])
    top = 255 if bits == 8 else 65535
    over = frames[:, :3].double() * frames[:, 3:].double() / top
    assert (clip.pixels.double() - over).abs().max() <= 1


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4", "a.apng", "a.gif", "a.webp"])
def test_an_exact_rate_comes_back(tmp_path: Path, name: str) -> None:
    """25 a second, which every kind can state."""
    frames = torch.from_numpy(noise(4, 3, 16, 16))
    with open_frames(tmp_path / name, width=16, height=16, frames=4, fps=Fraction(25)) as writer:
        writer.write(frames)
    assert writer.notes == ()
    assert read_clip(tmp_path / name).fps == 25


@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.jpg"])
def test_one_frame_is_a_picture(tmp_path: Path, name: str) -> None:
    """Not an animation of one frame."""
    frame = torch.from_numpy(np.full((1, 3, 16, 16), 90, np.uint8))
    with open_frames(tmp_path / name, width=16, height=16, frames=1) as writer:
        writer.write(frame)
    picture = read_picture(tmp_path / name)
    assert (picture.pixels * 255 - 90).abs().max() <= 1
    assert picture.notes == ()


def test_a_second_frame_for_a_picture_is_refused(tmp_path: Path) -> None:
    """And so is none."""
    with (
        pytest.raises(JobFailed, match="a second frame"),
        open_frames(tmp_path / "a.png", width=4, height=4, frames=1) as writer,
    ):
        writer.write(torch.zeros(2, 3, 4, 4))
    with (
        pytest.raises(JobFailed, match="no frame came"),
        open_frames(tmp_path / "b.png", width=4, height=4, frames=1),
    ):
        pass


@pytest.mark.parametrize("name", [f"a{kind}" for kind in FRAME_KINDS])
def test_every_kind_is_whole_or_absent(tmp_path: Path, name: str) -> None:
    """Where the job ends in the middle, what was there before stays, and nothing beside it."""
    path = tmp_path / name
    if path.suffix:
        path.write_bytes(b"old")
    several = name not in ("a.png", "a.jpg", "a.jpeg")

    def job() -> None:
        with open_frames(path, width=16, height=16, frames=4 if several else 1) as writer:
            if several:
                writer.write(torch.zeros(2, 3, 16, 16))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job()
    assert [each.name for each in tmp_path.iterdir()] == ([name] if path.suffix else [])
    if path.suffix:
        assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("name", "terms", "frames", "alpha", "says"),
    [
        ("a.png", {}, 5, False, "one picture"),
        ("a.jpg", {}, None, False, "several frames"),
        ("a.mp4", {}, 5, True, "holds none"),
        ("a.jpg", {}, 1, True, "holds none"),
        ("a.mp4", {"bits": 16}, 5, False, "--bits 16 is for PNG"),
        ("a.jpg", {"bits": 16}, 1, False, "--bits 16 is for PNG"),
        ("a.png", {"bits": 12}, 1, False, "no depth"),
        ("a.png", {"quality": 80}, 1, False, "--quality is for"),
        ("a.mkv", {"quality": 80}, 5, False, "--quality is for"),
        ("a.jpg", {"quality": 0}, 1, False, "beyond 1 to 100"),
        ("a.webp", {"quality": 101}, 5, False, "beyond 1 to 100"),
        ("a.avi", {}, 5, False, "must end in"),
    ],
)
def test_what_an_output_cannot_hold_is_refused_before_the_work(
    tmp_path: Path, name: str, terms: dict[str, int], frames: int | None, alpha: bool, says: str
) -> None:
    """With what to give instead."""
    with pytest.raises(TightfitError, match=says):
        check_frames(tmp_path / name, Terms(**terms), frames=frames, alpha=alpha, what="z")


def test_quality_makes_files_smaller(tmp_path: Path) -> None:
    """Pictures and animations; without it a WebP is lossless."""
    frames = torch.from_numpy(noise(3, 3, 32, 32))
    write(tmp_path / "best.webp", frames)
    write(tmp_path / "small.webp", frames, quality=20)
    for quality in (95, 30):
        write_picture(tmp_path / f"{quality}.jpg", frames[0], quality=quality)
        write_picture(tmp_path / f"{quality}.webp", frames[0], quality=quality)
    write_picture(tmp_path / "best.one.webp", frames[0])
    size = {path.name: path.stat().st_size for path in tmp_path.glob("*.*")}
    assert size["small.webp"] < size["best.webp"]
    assert size["30.jpg"] < size["95.jpg"]
    assert size["30.webp"] < size["95.webp"] < size["best.one.webp"]
    assert torch.equal(read_picture(tmp_path / "best.one.webp").pixels * 255, frames[0].float())


def test_sound_for_what_holds_none_is_said(tmp_path: Path) -> None:
    """From the start."""
    sound = Sound(torch.zeros(1, 100), 8000)
    for name in ("a.gif", "frames", "a.png"):
        writer = open_frames(tmp_path / name, width=8, height=8, frames=1, sound=sound)
        assert writer.notes[-1].startswith("left out the sound")


def test_texts_stand_in_pictures_of_both_depths(tmp_path: Path) -> None:
    """In PNG by keyword, in the others as an EXIF comment."""
    text = {"prompt": "a crème brûlée", "seed": "7"}
    pixels = torch.zeros(3, 4, 4)
    for bits in (8, 16):
        write_picture(tmp_path / "a.png", pixels, text=text, bits=bits)
        assert read_text(tmp_path / "a.png") == text
    for name in ("a.jpg", "a.webp"):
        write_picture(tmp_path / name, pixels, text=text)
        with Image.open(tmp_path / name) as image:
            comment = image.getexif().get_ifd(0x8769)[0x9286]
        assert bytes(comment)[:8] == b"UNICODE\0"
        assert bytes(comment)[8:].decode("utf-16-be") == "prompt: a crème brûlée\nseed: 7"


def test_a_size_beyond_a_kind_is_refused(tmp_path: Path) -> None:
    """Before anything is encoded."""
    with pytest.raises(InputError, match="16383 pixels"):
        open_frames(tmp_path / "a.webp", width=16384, height=8, frames=1)
    with pytest.raises(InputError, match="16383 pixels"):
        open_frames(tmp_path / "a.webp", width=16384, height=8, frames=2)


def test_alpha_is_not_dropped_by_a_jpeg(tmp_path: Path) -> None:
    """It is an error of the shape."""
    with pytest.raises(JobFailed, match="3 channels"):
        write_picture(tmp_path / "a.jpg", torch.zeros(4, 4, 4))
    with pytest.raises(UsageError, match="--bits 16"):
        write_picture(tmp_path / "a.jpg", torch.zeros(3, 4, 4), bits=16)
