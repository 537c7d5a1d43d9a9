"""Opens picture files with Pillow and turns what it finds into planes of floats."""

from __future__ import annotations

import logging
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError, features

from tightfit.errors import InputError
from tightfit.media import deep_png
from tightfit.media.float_tiff import FloatPicture, FloatTiff, Unknown
from tightfit.media.profiles import deep_in_srgb, in_srgb
from tightfit.media.tiff import TiffHeader
from tightfit.media.turn import UPRIGHT, Turn, from_exif

READ = ("PNG", "JPEG", "WebP", "GIF", "TIFF", *(("AVIF",) if features.check("avif") else ()))
"""What is read, as people write it; AVIF depends on how Pillow was built."""
KINDS = ", ".join(READ)

# What Pillow logs of damaged files is said by us; without a handler, Python would print it.
logging.getLogger("PIL").addHandler(logging.NullHandler())

_FORMATS = tuple(name.upper() for name in READ)
_MOVING = {"PNG", "WEBP", "GIF", "AVIF"}
_ORIENTATION = 0x0112
DAMAGE = (
    *(OSError, SyntaxError, ValueError, IndexError, EOFError, struct.error),
    *(TypeError, KeyError, AttributeError, ArithmeticError, MemoryError, RuntimeError),
)
"""What Pillow raises on damaged files: the first two by design, the others by accident."""


@dataclass(frozen=True)
class Planes:
    """One picture as stored, not yet upright, with values in 0..1.

    Attributes:
        rgb: [H,W,3].
        alpha: [H,W,1]; None where the file has no transparency.
        bits: a sample; 32 for floats.
        notes: what a report must say about the reading.
    """

    rgb: npt.NDArray[np.float32]
    alpha: npt.NDArray[np.float32] | None
    bits: int = 8
    notes: tuple[str, ...] = ()


class _Silence:
    """While any thread is inside, Pillow's warnings are not shown.

    It warns of large pictures, which are what the user asked for (it refuses those twice as
    large), and of damaged EXIF data, which then count as none. `warnings.catch_warnings` is for
    one thread: two that overlap would leave each other's filters behind.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._filter: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                warnings.filterwarnings("ignore", module=r"PIL\.")
                self._filter = warnings.filters[0]

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._filter in warnings.filters:
                cast(list[Any], warnings.filters).remove(self._filter)


_silence = _Silence()


@contextmanager
def open_still(path: Path) -> Iterator[Image.Image]:
    """Open a picture of the kinds in `READ` and read its header alone.

    Raises `InputError` on damage, here and in the body; `UnidentifiedImageError` where the file
    is of another kind.
    """
    try:
        # By its name, Pillow would map a TIFF with the size of the upright picture.
        with _silence, path.open("rb") as file, _opened(file) as image:
            yield image
    except UnidentifiedImageError:
        raise
    except Unknown as error:
        raise InputError(
            f"Cannot read {path}: {error}; get it anew, or convert it to 16 bits."
        ) from error
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise InputError(
            f"Cannot read {path}: it has more than {limit} pixels; cut it into parts."
        ) from error
    except DAMAGE as error:
        raise InputError(
            f"Cannot read {path}: the picture is cut off or damaged ({error}); get it anew."
        ) from error


def _opened(file: BinaryIO) -> Image.Image:
    try:
        return Image.open(file, formats=_FORMATS)
    except UnidentifiedImageError:
        file.seek(0)
        tiff = FloatTiff.of(file)
        if tiff is None:
            raise
        return FloatPicture(tiff)


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
    if image.format == "TIFF":
        return UPRIGHT  # as Pillow gives its size and its pixels
    if image.format == "PNG" and "exif" not in image.info:
        late = deep_png.chunk(path, b"eXIf")
        if late is not None:
            image.info["exif"] = b"Exif\0\0" + late
    # The PNG class of Pillow would decode the whole picture here; the base class does not.
    return from_exif(Image.Image.getexif(image).get(_ORIENTATION))


def read_planes(image: Image.Image, path: Path) -> Planes:
    """Decode the current frame of `image` in full: PNG and TIFF at their own depth, the rest at 8.

    Raises `InputError` on samples that nothing says the meaning of.
    """
    header = TiffHeader(image) if image.format == "TIFF" else None
    profile = image.info.get("icc_profile")
    image.load()
    if image.format == "PNG" and deep_png.is_deep(path):
        return _by_profile(_split(deep_png.read(path), top=65535), profile)
    deep = None if header is None else header.samples(image, path)
    if deep is not None:
        samples, top, more = deep
        return _by_profile(_split(samples, top=top, notes=more, path=path), profile)
    try:
        made, notes = in_srgb(image, profile)
        samples = np.asarray(made)
    except ValueError as error:
        raise InputError(
            f"Cannot read {path}: its colours ({image.mode}) are not turned to RGB; convert it."
        ) from error
    return _split(samples, top=255, notes=notes)


def _by_profile(planes: Planes, profile: bytes | None) -> Planes:
    rgb, notes = deep_in_srgb(planes.rgb, profile)
    return replace(planes, rgb=rgb, notes=(*notes, *planes.notes))


def _split(
    samples: npt.NDArray[Any],
    *,
    top: int | None,
    notes: tuple[str, ...] = (),
    path: Path | None = None,
) -> Planes:
    """Samples [H,W,1..4] (grey, grey + alpha, RGB, RGBA) in 0..top as planes; floats as they are.

    Floats beyond 0..1 are clamped, which is said.
    """
    channels = samples.shape[2]
    if top is None:
        values = samples.astype(np.float32)
        if not np.isfinite(values).all():
            raise InputError(f"Cannot read {path}: it holds NaN or infinite values.")
        low, high = float(values.min()), float(values.max())
        if low < 0 or high > 1:
            values = values.clip(0, 1)
            notes = (*notes, f"clamped floats of {low:.3g} to {high:.3g} to 0..1")
    else:
        values = samples.astype(np.float32) / np.float32(top)
    colour = values[:, :, : channels - 1] if channels % 2 == 0 else values
    return Planes(
        rgb=np.repeat(colour, 3, axis=2) if colour.shape[2] == 1 else colour,
        alpha=values[:, :, -1:] if channels % 2 == 0 else None,
        bits=32 if top is None else max(8, top.bit_length()),
        notes=notes,
    )
