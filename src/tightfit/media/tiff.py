"""What TIFF files have beyond other pictures: deep samples, floats, tiles, pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tightfit.errors import InputError
from tightfit.media import deep_samples
from tightfit.media.float_tiff import FloatPicture
from tightfit.media.turn import from_exif

_BITS, _PHOTOMETRIC, _ORIENTATION, _PREDICTOR, _TILE, _FORMAT = 258, 262, 274, 317, 322, 339
_UNSIGNED, _FLOAT = 1, 3
_WHITE_IS_ZERO = 0
_DIFFERENCES = 2


class TiffHeader:
    """What the tags say of the samples; taken before Pillow decodes and drops some of them."""

    def __init__(self, image: Image.Image) -> None:
        tags: Any = getattr(image, "tag_v2", {})
        self.bits = max(_numbers(tags.get(_BITS, 1)))
        self.format = max(_numbers(tags.get(_FORMAT, _UNSIGNED)))
        self._tiled = _TILE in tags
        self._predictor = tags.get(_PREDICTOR, 1)
        self._inverted = tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
        self._turn = from_exif(tags.get(_ORIENTATION))

    def samples(
        self, image: Image.Image, path: Path
    ) -> tuple[npt.NDArray[Any], int | None, tuple[str, ...]] | None:
        """Upright samples [H,W,C] of the loaded `image`, their top (None: floats), and notes.

        None where they have 8 bits, which Pillow reads. Raises `InputError` on integers that are
        signed or of 32 bits: nothing says what their white is.
        """
        if isinstance(image, FloatPicture):
            return image.tiff.samples(), None, ()
        if image.mode == "F":
            return np.asarray(image)[:, :, None], None, ()
        if image.mode == "I":
            sign = "" if self.format == _UNSIGNED else "signed "
            raise InputError(
                f"Cannot read {path}: nothing says which of its {sign}{self.bits}-bit values is "
                "white; convert it to 16 bits."
            )
        plain = self.format == _UNSIGNED and not self._tiled
        if self.bits == 16 and plain and self._predictor in (1, _DIFFERENCES):
            return self._turn.apply(deep_samples.read(path, "tiff_pipe")), 65535, ()
        if image.mode.startswith("I;16"):
            grey, top = np.asarray(image).astype(np.uint16)[:, :, None], (1 << self.bits) - 1
            return (top - grey if self._inverted else grey), top, ()
        if self.bits > 8:
            return np.asarray(image), 255, (f"read {self.bits} bits a sample as 8",)
        return None


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple) else (int(value),)
