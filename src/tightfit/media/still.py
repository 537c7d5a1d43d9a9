"""Opens picture files with Pillow and turns what it finds into planes of floats."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from tightfit.errors import InputError
from tightfit.media import deep_png
from tightfit.media.turn import Turn, from_exif

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_MOVING = {"PNG", "WEBP", "GIF"}
_ORIENTATION = 0x0112
DAMAGE = (OSError, SyntaxError, ValueError, IndexError, EOFError, struct.error)
"""What Pillow raises on damaged files: the first two by design, the others by accident."""


@dataclass(frozen=True)
class Planes:
    """One picture as stored, not yet upright, with values in 0..1.

    Attributes:
        rgb: [H,W,3].
        alpha: [H,W,1]; None where the file has no transparency.
    """

    rgb: npt.NDArray[np.float32]
    alpha: npt.NDArray[np.float32] | None


@contextmanager
def open_still(path: Path) -> Iterator[Image.Image]:
    """Open a PNG, JPEG, WebP or GIF and read its header alone.

    Raises `InputError` on damage, here and in the body; `UnidentifiedImageError` where the file
    is of another kind.
    """
    try:
        with warnings.catch_warnings():
            # Pillow warns of large pictures, which are what the user asked for (it refuses those
            # twice as large), and of damaged EXIF data, which then count as none.
            warnings.filterwarnings("ignore", module=r"PIL\.")
            with Image.open(path, formats=_FORMATS) as image:
                yield image
    except UnidentifiedImageError:
        raise
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise InputError(
            f"Cannot read {path}: it has more than {limit} pixels; cut it into parts."
        ) from error
    except DAMAGE as error:
        raise InputError(
            f"Cannot read {path}: the picture is cut off or damaged ({error}); get it anew."
        ) from error


def is_moving(image: Image.Image) -> bool:
    """Whether the file is an animation. A phone's JPEG with several pictures is not."""
    return image.format in _MOVING and frame_count(image) > 1


def frame_count(image: Image.Image) -> int:
    """How many pictures the file holds."""
    return int(getattr(image, "n_frames", 1))


def has_alpha(image: Image.Image) -> bool:
    """Whether the file stores transparency, used or not."""
    return bool(image.has_transparency_data)


def turn_of(image: Image.Image, path: Path) -> Turn:
    """How to set the picture upright, by its EXIF orientation; decodes no pixels."""
    if image.format == "PNG" and "exif" not in image.info:
        late = deep_png.chunk(path, b"eXIf")
        if late is not None:
            image.info["exif"] = b"Exif\0\0" + late
    # The PNG class of Pillow would decode the whole picture here; the base class does not.
    return from_exif(Image.Image.getexif(image).get(_ORIENTATION))


def read_planes(image: Image.Image, path: Path) -> Planes:
    """Decode the current frame of `image` in full: 16-bit PNGs at 16 bits, the rest at 8."""
    image.load()
    if image.format == "PNG" and deep_png.is_deep(path):
        return _split(deep_png.read(path), top=65535)
    return _split(np.asarray(image.convert("RGBA" if has_alpha(image) else "RGB")), top=255)


def _split(samples: npt.NDArray[np.integer], *, top: int) -> Planes:
    """Samples [H,W,1..4] (grey, grey + alpha, RGB, RGBA) in 0..top as planes."""
    channels = samples.shape[2]
    values = samples.astype(np.float32) / np.float32(top)
    colour = values[:, :, : channels - 1] if channels % 2 == 0 else values
    return Planes(
        rgb=np.repeat(colour, 3, axis=2) if colour.shape[2] == 1 else colour,
        alpha=values[:, :, -1:] if channels % 2 == 0 else None,
    )
