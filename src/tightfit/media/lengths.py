"""How long a media file says it is, so that one cut off in the middle is noticed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from tightfit.errors import InputError

_EBML = b"\x1a\x45\xdf\xa3"
_SEGMENT = 0x18538067


def is_cut_off(path: Path) -> bool:
    """Whether `path` ends before its own headers say that it should.

    Knows ISO media (MP4, MOV), Matroska (MKV, WebM), RIFF (AVI, WebP) and GIF. A file that does
    not state its length, such as a live recording, is taken as whole; so is a fragmented MP4 cut
    exactly between two fragments.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(12)
        file.seek(0)
        if head[:4] == b"RIFF":
            return 8 + int.from_bytes(head[4:8], "little") > size
        if head[:3] == b"GIF":
            return not _ends_in_gif_trailer(file, size)
        if head[:4] == _EBML:
            return _matroska_end(file) > size
        return head[4:8] == b"ftyp" and _last_box_end(file, size) > size


def cut_off(path: Path, count: int) -> InputError:
    """The error for a clip of which only the first `count` frames could be read."""
    remedy = f", or take what is there with --frames 0:{count}" if count else ""
    return InputError(
        f"Cannot read {path} to its end: it is cut off or damaged, and {count} frames could be "
        f"read; get it anew{remedy}."
    )


def _ends_in_gif_trailer(file: BinaryIO, size: int) -> bool:
    """Some writers pad the file with zeros after the trailer ``;``."""
    file.seek(max(0, size - 4096), os.SEEK_SET)
    return file.read().rstrip(b"\0").endswith(b";")


def _last_box_end(file: BinaryIO, size: int) -> int:
    """Where the last top-level box ends, in bytes; ISO/IEC 14496-12, 4.2.

    Some cameras append data that is no box; it ends the walk, and so does length 0 ("to the end").
    """
    end = 0
    while end < size:
        file.seek(end)
        header = file.read(16)
        if len(header) < 8:
            return size + 1
        length = int.from_bytes(header[:4], "big")
        if length == 1:
            length = int.from_bytes(header[8:16], "big")
        if length < 8 or not all(0x20 <= byte < 0x7F for byte in header[4:8]):
            return size
        end += length
    return end


def _matroska_end(file: BinaryIO) -> int:
    """Where the first segment ends, in bytes; 0 where its size is not stated. RFC 8794, 4 to 6."""
    file.seek(len(_EBML))
    header = _vint(file)
    if header is None:
        return 0
    file.seek(header, os.SEEK_CUR)
    if int.from_bytes(file.read(4), "big") != _SEGMENT:
        return 0
    length = _vint(file)
    return 0 if length is None else file.tell() + length


def _vint(file: BinaryIO) -> int | None:
    """A variable-size integer; None where it is reserved for "unknown", or missing."""
    first = file.read(1)
    if not first or not first[0]:
        return None
    width = 9 - first[0].bit_length()
    rest = file.read(width - 1)
    if len(rest) < width - 1:
        return None
    value = int.from_bytes(first + rest, "big") & ((1 << 7 * width) - 1)
    return None if value == (1 << 7 * width) - 1 else value
