"""Pictures with more than 8 bits a sample, which Pillow would cut to 8 or clamp."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tightfit.errors import InputError

_PACKED = {"gray": 1, "ya": 2, "rgb": 3, "rgba": 4}
_PLANAR = {"gbrp": (2, 0, 1), "gbrap": (2, 0, 1, 3)}


def read(path: Path, demuxer: str, file: BinaryIO | None = None) -> npt.NDArray[Any]:
    """Samples [H,W,C] of a picture; C is 1 (grey), 2 (grey + alpha), 3 (RGB) or 4 (RGBA).

    uint16 in 0..65535, or float32 as they are in the file. `demuxer` is FFmpeg's name of the kind:
    ``png_pipe`` or ``tiff_pipe``. `file` is read instead of the one at `path`, where the picture is
    a part of that. The decoder does not refuse every file that is cut off: check that with Pillow
    first. Raises `InputError` where the samples do not decode.
    """
    import av  # a tensor, or a still that Pillow reads, needs none

    try:
        with av.open(file or f"file:{path}", format=demuxer) as container:
            frame = next(container.decode(video=0))
    except (av.error.FFmpegError, StopIteration) as error:
        raise InputError(f"Cannot read {path}: its deep samples do not decode.") from error
    name = str(frame.format.name)
    order = ">" if name.endswith("be") else "<"
    kind = name.removesuffix("be").removesuffix("le")
    if kind.removesuffix("16") in _PLANAR:
        places = _PLANAR[kind.removesuffix("16")]
        planes = [_rows(frame.planes[at], f"{order}u2", frame.height) for at in places]
        return np.stack([plane[:, : frame.width] for plane in planes], axis=2).astype(np.uint16)
    floats = kind.endswith("f32")
    stem = kind.rstrip("0123456789").removesuffix("f")
    if stem not in _PACKED or not (floats or kind in ("gray16", "ya16", "rgb48", "rgba64")):
        raise InputError(f"Cannot read {path}: its samples are {name}; convert it to PNG.")
    channels = _PACKED[stem]
    rows = _rows(frame.planes[0], f"{order}f4" if floats else f"{order}u2", frame.height)
    samples = rows[:, : frame.width * channels].reshape(frame.height, frame.width, channels)
    return samples.astype(np.float32 if floats else np.uint16)


def _rows(plane: Any, kind: str, height: int) -> npt.NDArray[Any]:
    width = plane.line_size // np.dtype(kind).itemsize
    return np.frombuffer(plane, kind).reshape(-1, width)[:height]
