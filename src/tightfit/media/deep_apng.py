"""Animated PNG files with 16 bits a sample, of which Pillow gives 8."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tightfit.errors import InputError
from tightfit.media import deep_samples
from tightfit.media.deep_png import SIGNATURE, framed

_KEEP, _CLEAR, _BACK = 0, 1, 2
_OVER = 1
_COLOURS = (b"PLTE", b"tRNS", b"sBIT", b"gAMA", b"cHRM", b"sRGB", b"iCCP")
_TOP = 65535

Canvas = npt.NDArray[np.uint16]
"""RGBA [H,W,4], or RGB, in 0..65535."""


@dataclass(frozen=True)
class _Patch:
    """One frame as it is stored, PNG (third edition), 11.3.7.

    Attributes:
        width, height, left, top: of the part of the picture that it holds.
        dispose: what becomes of that part before the next frame.
        over: it is laid over what is there; else it takes its place.
        data: compressed.
    """

    width: int
    height: int
    left: int
    top: int
    dispose: int
    over: bool
    data: tuple[bytes, ...]


def frames(path: Path) -> Iterator[Canvas]:
    """Each frame of the animation in turn, drawn in full; the array is the caller's own.

    Without alpha, [H,W,3], where nothing shows through.

    What Pillow checks of a file (lengths, sums, order) is not checked again. Raises `InputError`
    where samples do not decode, or lie beyond the picture.
    """
    head, colours, patches = _taken_apart(path)
    width, height = struct.unpack(">II", head[:8])
    canvas = np.zeros((height, width, 4), np.uint16)
    for patch in patches:
        if patch.left + patch.width > width or patch.top + patch.height > height:
            raise InputError(f"Cannot read {path}: a frame lies beyond the picture; get it anew.")
        where = (
            slice(patch.top, patch.top + patch.height),
            slice(patch.left, patch.left + patch.width),
        )
        before = canvas[where].copy() if patch.dispose == _BACK else None
        drawn = _decoded(path, head, colours, patch)
        canvas[where] = _over(canvas[where], drawn) if patch.over else drawn
        opaque = bool((canvas[:, :, 3] == _TOP).all())
        yield canvas[:, :, : 3 if opaque else 4].copy()
        if before is not None:
            canvas[where] = before
        elif patch.dispose == _CLEAR:
            canvas[where] = 0


def _taken_apart(path: Path) -> tuple[bytes, bytes, list[_Patch]]:
    """The header's data, the chunks of colours, and the frames."""
    data = path.read_bytes()
    head, colours = b"", b""
    told: list[tuple[bytes, list[bytes]]] = []
    at = len(SIGNATURE)
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += 12 + length
        if name == b"IHDR":
            head = body
        elif name in _COLOURS and not told:
            colours += framed(name, body)
        elif name == b"fcTL":
            told.append((body, []))
        elif name in (b"IDAT", b"fdAT") and told:
            told[-1][1].append(body if name == b"IDAT" else body[4:])
    try:
        return head, colours, [_patch(body, parts) for body, parts in told if parts]
    except struct.error as error:
        raise InputError(f"Cannot read {path}: a frame's header is damaged.") from error


def _patch(body: bytes, parts: list[bytes]) -> _Patch:
    _, width, height, left, top, _, _, dispose, blend = struct.unpack_from(">IIIIIHHBB", body)
    return _Patch(width, height, left, top, dispose, blend == _OVER, tuple(parts))


def _decoded(path: Path, head: bytes, colours: bytes, patch: _Patch) -> Canvas:
    """A frame by itself is a picture of its own."""
    header = struct.pack(">II", patch.width, patch.height) + head[8:]
    body = b"".join(framed(b"IDAT", part) for part in patch.data)
    alone = SIGNATURE + framed(b"IHDR", header) + colours + body + framed(b"IEND", b"")
    samples = deep_samples.read(path, "png_pipe", BytesIO(alone))
    if samples.shape[:2] != (patch.height, patch.width):
        raise InputError(f"Cannot read {path}: a frame has another size than it says.")
    made = np.full((patch.height, patch.width, 4), _TOP, np.uint16)
    channels = samples.shape[2]
    made[:, :, :3] = samples[:, :, : 3 if channels > 2 else 1]
    if channels % 2 == 0:
        made[:, :, 3:] = samples[:, :, -1:]
    return made


def _over(under: Canvas, drawn: Canvas) -> Canvas:
    """PNG (third edition), 13.16: neither is multiplied by its alpha."""
    top, below = (each[:, :, 3:].astype(np.float64) / _TOP for each in (drawn, under))
    alpha = top + below * (1 - top)
    shares = drawn[:, :, :3] * top + under[:, :, :3] * below * (1 - top)
    colours = np.divide(shares, alpha, out=np.zeros_like(shares), where=alpha > 0)
    made: Canvas = np.rint(np.concatenate([colours, alpha * _TOP], axis=2)).astype(np.uint16)
    return made
