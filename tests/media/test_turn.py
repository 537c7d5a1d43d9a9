"""The eight orientations."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from tightfit.media.turn import UPRIGHT, Turn, from_exif, from_matrix

PIXELS = np.arange(2 * 3).reshape(2, 3, 1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_m07_an_exif_turn_equals_pillows(orientation: int) -> None:
    """Eight values, four of them mirrored, against an independent implementation."""
    image = Image.fromarray(PIXELS[:, :, 0].astype(np.uint8))
    exif = image.getexif()
    exif[0x0112] = orientation
    stored = io.BytesIO()
    image.save(stored, "PNG", exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(stored)))
    turn = from_exif(orientation)
    assert np.array_equal(turn.apply(PIXELS)[:, :, 0], upright)
    assert turn.size(3, 2) == (upright.shape[1], upright.shape[0])


@pytest.mark.parametrize("orientation", [None, 0, 9, -1, "6", (6,)])
def test_a_senseless_orientation_means_upright(orientation: object) -> None:
    """A broken tag does not stop the reading."""
    assert from_exif(orientation) == UPRIGHT


@pytest.mark.parametrize("clockwise", [0, 1, 2, 3])
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_matrix_turn_equals_a_rotation(clockwise: int, mirrored: bool) -> None:
    """Four quarter turns, each with and without a mirror image before it."""
    turns = [(1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0)]
    a, b, c, d = (65536 * part for part in turns[clockwise])
    source = PIXELS
    if mirrored:
        a, b, source = -a, -b, PIXELS[:, ::-1]
    turn = from_matrix((a, b, 0, c, d, 0, 0, 0, 1 << 30))
    assert turn is not None
    assert np.array_equal(turn.apply(PIXELS), np.rot90(source, -clockwise))


def test_a_turn_by_45_degrees_has_no_name() -> None:
    """It is told apart from upright, so that a report can say it was left out."""
    assert from_matrix((46341, 46341, 0, -46341, 46341, 0, 0, 0, 1 << 30)) is None


def test_a_matrix_a_little_off_is_still_a_quarter_turn() -> None:
    """Rounded sines and cosines are met in real files."""
    assert from_matrix((-3, 65536, 0, -65536, -3, 0, 0, 0, 1 << 30)) == Turn(
        swap=True, flip_columns=True
    )
