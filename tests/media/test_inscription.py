"""What stands in a file about how it was made, read back."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch

from tightfit.media.inscription import read_inscription
from tightfit.media.outputs import Terms, open_frames

TEXT = {"prompt": "a cät: 2 of\nthem", "seed": "5", "LoRA": "a.safetensors:0.5"}


def written(out: Path, frames: int) -> Path:
    """Grey, with `TEXT`."""
    terms = Terms(text=tuple(TEXT.items()))
    rate = Fraction(8) if frames > 1 else None
    with open_frames(
        out, width=16, height=16, frames=frames, fps=rate, sound=None, terms=terms
    ) as writer:
        writer.write(torch.full((frames, 3, 16, 16), 0.5))
    return out


@pytest.mark.parametrize(
    ("name", "frames"),
    [("a.png", 1), ("a.jpg", 1), ("a.webp", 1), ("a.mp4", 3), ("a.mkv", 3), ("a.gif", 3)],
)
def test_what_was_written_into_a_file_is_read_from_it(
    name: str, frames: int, tmp_path: Path
) -> None:
    """By its keywords, whatever kind it is; nothing from one that is cut off."""
    out = written(tmp_path / name, frames)
    assert read_inscription(out) == TEXT
    out.write_bytes(out.read_bytes()[:40])
    assert read_inscription(out) == {}


def test_what_says_nothing_has_no_inscription(tmp_path: Path) -> None:
    """A folder of frames, a file that is none of these, and what is not there."""
    (tmp_path / "a.mp4").write_bytes(b"nonsense")
    (tmp_path / "frames").mkdir()
    for name in ("a.mp4", "frames", "nowhere.gif", "nowhere.png"):
        assert read_inscription(tmp_path / name) == {}
