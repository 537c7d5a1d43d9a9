"""PNG files with 16 bits a sample, which Pillow would cut to 8 bits or clamp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tightfit.errors import InputError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {"gray16be": 1, "ya16be": 2, "rgb48be": 3, "rgba64be": 4}


def is_deep(path: Path) -> bool:
    """Whether the PNG at `path` stores 16 bits a sample."""
    with path.open("rb") as file:
        return file.read(25)[24:] == b"\x10"


def read(path: Path) -> npt.NDArray[np.uint16]:
    """Samples [H,W,C] in 0..65535; C is 1 (grey), 2 (grey + alpha), 3 (RGB) or 4 (RGBA).

    The decoder does not refuse a file that is cut off: check that with Pillow first.
    """
    import av  # a tensor, or a still that Pillow reads, needs none

    try:
        with av.open(f"file:{path}", format="png_pipe") as container:
            frame = next(container.decode(video=0))
    except (av.error.FFmpegError, StopIteration) as error:
        raise InputError(f"Cannot read {path}: its 16-bit samples do not decode.") from error
    channels = _CHANNELS[frame.format.name]
    plane = frame.planes[0]
    rows = np.frombuffer(plane, ">u2").reshape(frame.height, plane.line_size // 2)
    samples = rows[:, : frame.width * channels].reshape(frame.height, frame.width, channels)
    return samples.astype(np.uint16)


def chunk(path: Path, name: bytes) -> bytes | None:
    """The data of the first chunk `name`, wherever it lies; the others are skipped unread."""
    with path.open("rb") as file:
        if file.read(8) != _SIGNATURE:
            return None
        while len(header := file.read(8)) == 8:
            length = int.from_bytes(header[:4], "big")
            if header[4:] == name:
                return file.read(length)
            file.seek(length + 4, 1)
    return None
