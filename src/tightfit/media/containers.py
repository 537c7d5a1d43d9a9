"""Opens what FFmpeg reads, within limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightfit.errors import InputError

_HEAD = 8
"""Bytes of a name and a length, in front of every chunk of RIFF."""
_KEPT = (b"LIST", b"id3 ", b"ID3 ", b"bext", b"iXML")
"""Parts of a WAV that FFmpeg takes whole; others it skips, or reads as they come."""
_MOST_CHUNKS = 1000


def open_container(path: Path, limits: Mapping[str, str]) -> Any:
    """A container of PyAV, by the options of FFmpeg in `limits`.

    Raises what PyAV raises, and `InputError` for a RIFF file (WAV, AVI) whose texts are said to be
    longer than the file: FFmpeg takes gigabytes for these before it looks. From version 19 on, PyAV
    itself replaces what is no text in titles and comments.
    """
    import av

    _check_texts(path)
    old = int(av.__version__.partition(".")[0]) < 19
    lenient: dict[str, Any] = {"metadata_errors": "replace"} if old else {}
    return av.open(f"file:{path}", options=dict(limits), **lenient)


def _check_texts(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(4) not in (b"RIFF", b"RIFX", b"RF64", b"BW64"):
            return
        size = path.stat().st_size
        file.seek(8)
        of_sound = file.read(4) == b"WAVE"
        at, in_texts_until = 12, 0
        for _ in range(_MOST_CHUNKS):
            file.seek(at)
            head = file.read(_HEAD + 4)
            if len(head) < _HEAD:
                return
            name, end = head[:4], at + _HEAD + int.from_bytes(head[4:8], "little")
            if name == b"LIST" and head[8:12] == b"INFO":
                at, in_texts_until = at + _HEAD + 4, end
                continue
            looked_at = at < in_texts_until or (of_sound and name in _KEPT)
            if looked_at and end > size:
                raise InputError(
                    f"Cannot read {path}: its part `{name.decode('latin-1')}` should end at byte "
                    f"{end:,}, but the file has {size:,} bytes; get it anew."
                )
            at = end + end % 2
