"""Animations as Pillow gives them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tightfit.media import still
from tightfit.media.animation import animation
from tightfit.media.background import WHITE, flatten

from .makers import write_patch_gif


def test_m09_frames_that_store_a_patch_come_whole(tmp_path: Path) -> None:
    """Each frame is drawn over those before it."""
    path = write_patch_gif(tmp_path / "a.gif")
    with still.open_still(path) as image:
        source = animation(image, path)
        shots = [(shot.time, shot.length, flatten(shot.pixels(), WHITE)) for shot in source.shots()]
    assert (source.width, source.height, source.frames) == (32, 24, 5)
    assert source.rates == (Fraction(25, 2),)
    for index, (time, length, pixels) in enumerate(shots):
        assert (time, length) == (Fraction(8, 100) * index, Fraction(8, 100))
        expected = np.zeros((24, 32, 3), np.uint8)
        expected[..., 2] = 200
        expected[8:16, 5 * index : 5 * index + 8] = (250, 0, 0)
        assert np.array_equal(pixels, expected)


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png"])
def test_transparent_frames_are_laid_over_the_background(tmp_path: Path, name: str) -> None:
    """The colour stored under them does not show."""
    frames = []
    for column in (0, 4):
        pixels = np.zeros((8, 8, 4), np.uint8)
        pixels[..., 0] = 240
        pixels[:, column : column + 4, 3] = 255
        frames.append(Image.fromarray(pixels))
    options = {"lossless": True} if name == "a.webp" else {"disposal": 2}
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], duration=50, **options)
    with still.open_still(tmp_path / name) as image:
        source = animation(image, tmp_path / name)
        assert source.has_alpha
        last = [flatten(shot.pixels(), WHITE) for shot in source.shots()][-1]
    assert last[0, 0].tolist() == [255, 255, 255]
    assert last[0, 7].tolist() == [240, 0, 0]


def test_an_unstated_delay_is_a_tenth_of_a_second(tmp_path: Path) -> None:
    """As browsers show it."""
    path = write_patch_gif(tmp_path / "a.gif", delay_ms=0)
    with still.open_still(path) as image:
        assert animation(image, path).rates == (Fraction(10),)
