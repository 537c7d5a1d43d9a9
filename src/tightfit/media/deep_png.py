"""PNG files with 16 bits a sample, which Pillow neither reads nor writes in full."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tightfit.media import deep_samples

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KINDS = {1: 0, 2: 4, 3: 2, 4: 6}
_UP = 2


def is_deep(path: Path) -> bool:
    """Whether the PNG at `path` stores 16 bits a sample."""
    with path.open("rb") as file:
        return file.read(25)[24:] == b"\x10"


def read(path: Path) -> npt.NDArray[np.uint16]:
    """Samples [H,W,C] in 0..65535; C is 1 (grey), 2 (grey + alpha), 3 (RGB) or 4 (RGBA).

    The decoder does not refuse a file that is cut off: check that with Pillow first.
    """
    samples: npt.NDArray[np.uint16] = deep_samples.read(path, "png_pipe")
    return samples


def encode(samples: npt.NDArray[np.uint16], *, chunks: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """The file of samples [H,W,C] as `read` gives them; `chunks` (name, data) precede the pixels.

    Each row is stored as its difference to the one above, PNG (third edition), 9.2.
    """
    height, width, channels = samples.shape
    rows = np.ascontiguousarray(samples.astype(">u2")).view(np.uint8).reshape(height, -1)
    filtered = np.full((height, rows.shape[1] + 1), _UP, np.uint8)
    filtered[:, 1:] = rows
    filtered[1:, 1:] -= rows[:-1]
    header = struct.pack(">IIBBBBB", width, height, 16, _KINDS[channels], 0, 0, 0)
    body = zlib.compress(filtered.tobytes(), 6)
    parts = ((b"IHDR", header), *chunks, (b"IDAT", body), (b"IEND", b""))
    return SIGNATURE + b"".join(framed(name, data) for name, data in parts)


def chunk(path: Path, name: bytes) -> bytes | None:
    """The data of the first chunk `name`, wherever it lies; the others are skipped unread."""
    with path.open("rb") as file:
        if file.read(8) != SIGNATURE:
            return None
        while len(header := file.read(8)) == 8:
            length = int.from_bytes(header[:4], "big")
            if header[4:] == name:
                return file.read(length)
            file.seek(length + 4, 1)
    return None


def framed(name: bytes, data: bytes) -> bytes:
    """A chunk as it stands in a file."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
