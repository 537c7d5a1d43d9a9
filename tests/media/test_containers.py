"""What FFmpeg is given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tightfit.errors import InputError
from tightfit.media.sound import Sound, read_sound, write_sound


@pytest.mark.parametrize("part", [b"LIST", b"id3 "])
def test_a_text_longer_than_its_file_is_refused_before_it_is_taken(
    part: bytes, tmp_path: Path
) -> None:
    """FFmpeg would take the memory first: 2 GiB for a file of 4 KiB."""
    path = tmp_path / "a.wav"
    write_sound(path, Sound(torch.zeros(1, 1000), 8000))
    inside = b"INFOINAM" if part == b"LIST" else b""
    more = inside + (2**31 - 99).to_bytes(4, "little") if inside else b""
    length = len(more) if more else 2**31 - 99
    path.write_bytes(path.read_bytes() + part + length.to_bytes(4, "little") + more)
    with pytest.raises(InputError, match=r"a\.wav: its part `(INAM|id3 )` should end at byte"):
        read_sound(path)


def test_a_title_is_read_past(tmp_path: Path) -> None:
    """Of odd length, as they come."""
    path = tmp_path / "a.wav"
    write_sound(path, Sound(torch.zeros(1, 1000), 8000), comment="odd")
    assert read_sound(path).samples.shape == (1, 1000)
