"""The eight ways a stored picture can lie, and how to set it upright."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class Turn:
    """What sets a picture upright: swap rows with columns first, then mirror what is named."""

    swap: bool = False
    flip_rows: bool = False
    flip_columns: bool = False

    def apply(self, pixels: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """Set an array [H,W,...] upright; a view."""
        turned = pixels.swapaxes(0, 1) if self.swap else pixels
        rows = slice(None, None, -1) if self.flip_rows else slice(None)
        columns = slice(None, None, -1) if self.flip_columns else slice(None)
        return turned[rows, columns]

    def size(self, width: int, height: int) -> tuple[int, int]:
        """The upright (width, height) in pixels of a picture stored as `width` x `height`."""
        return (height, width) if self.swap else (width, height)


UPRIGHT = Turn()

_BY_EXIF = {
    2: Turn(flip_columns=True),
    3: Turn(flip_rows=True, flip_columns=True),
    4: Turn(flip_rows=True),
    5: Turn(swap=True),
    6: Turn(swap=True, flip_columns=True),
    7: Turn(swap=True, flip_rows=True, flip_columns=True),
    8: Turn(swap=True, flip_rows=True),
}


def from_exif(orientation: Any) -> Turn:
    """The turn for an EXIF orientation 1 to 8; anything else means upright (Exif 2.32, 4.6.4)."""
    return _BY_EXIF.get(orientation, UPRIGHT) if isinstance(orientation, int) else UPRIGHT


def from_matrix(matrix: Sequence[int]) -> Turn | None:
    """The turn for a display matrix (a, b, u, c, d, v, x, y, w), ISO/IEC 14496-12, 6.2.2.

    A stored point (x, y) is shown at (ax + cy, bx + dy). None where that is neither a quarter
    turn nor a mirror image.
    """
    a, b, _, c, d, *_ = matrix
    small = max(abs(value) for value in (a, b, c, d)) / 1000
    if abs(a) <= small and abs(d) <= small and b and c:
        return Turn(swap=True, flip_rows=b < 0, flip_columns=c < 0)
    if abs(b) <= small and abs(c) <= small and a and d:
        return Turn(flip_rows=d < 0, flip_columns=a < 0)
    return None
