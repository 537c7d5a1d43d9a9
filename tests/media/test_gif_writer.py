"""Animated GIFs, and texts in pictures and clips."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch
from PIL import Image

from tightfit.errors import JobFailed
from tightfit.media.clip_writer import ClipWriter
from tightfit.media.gif_writer import GifWriter
from tightfit.media.picture_writer import read_text, write_picture


def frames(count: int) -> torch.Tensor:
    """Of one grey each, brighter and brighter."""
    return torch.linspace(0, 1, count).view(count, 1, 1, 1).expand(count, 3, 16, 24)


def test_a_gif_has_its_frames_its_rate_and_a_comment(tmp_path: Path) -> None:
    """It repeats for ever, and says where a rate is none that GIFs have."""
    path = tmp_path / "a.gif"
    with GifWriter(path, Fraction(16), comment="seed: 1") as writer:
        writer.write(frames(3))
        writer.write(frames(2))
    assert writer.notes == ("a GIF shows 16.6667 frames per second, not 16",)
    with Image.open(path) as image:
        assert (image.size, image.n_frames) == ((24, 16), 5)  # type: ignore[attr-defined]
        assert (image.info["duration"], image.info["loop"]) == (60, 0)
        assert image.info["comment"] == b"seed: 1"
    assert GifWriter(path, Fraction(10)).notes == ()


def test_a_gif_is_whole_or_absent(tmp_path: Path) -> None:
    """Neither an error half way nor a clip without frames leaves a file."""
    path = tmp_path / "a.gif"
    with pytest.raises(JobFailed, match="NaN"), GifWriter(path, Fraction(10)) as writer:
        writer.write(frames(2) * torch.nan)
    with pytest.raises(JobFailed, match="no frame came"), GifWriter(path, Fraction(10)):
        pass
    assert list(tmp_path.glob("*.gif")) == []


def test_texts_of_a_picture_come_back(tmp_path: Path) -> None:
    """Of any letters; what is no PNG has none."""
    path = tmp_path / "a.png"
    text = {"prompt": "ein Schloß 🏰\nim Nebel", "seed": "1"}
    write_picture(path, frames(1)[0], text=text)
    assert read_text(path) == text
    path.write_bytes(b"no picture")
    assert read_text(path) == {}


def test_a_clip_has_a_comment(tmp_path: Path) -> None:
    """In the file's metadata."""
    path = tmp_path / "a.mp4"
    with ClipWriter(path, 24, 16, Fraction(10), comment="seed: 1") as writer:
        writer.write(frames(2))
    with av.open(str(path)) as container:
        assert container.metadata["comment"] == "seed: 1"
