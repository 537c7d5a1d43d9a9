"""Opens animations (GIF, WebP, PNG) with Pillow."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from tightfit.errors import InputError
from tightfit.media import deep_apng, still
from tightfit.media.deep_png import is_deep
from tightfit.media.lengths import cut_off, is_cut_off
from tightfit.media.shots import Pixels, Shot, Source
from tightfit.media.turn import Turn

_UNSTATED = Fraction(1, 10)
"""Seconds that browsers show a frame for whose delay is zero."""
_FINEST = 65535
"""The largest denominator of a delay: a PNG states it as a fraction, which Pillow rounds."""
_USUAL = tuple(
    Fraction(rate) for rate in (24, "24000/1001", 25, 30, "30000/1001", 50, 60, 12, 15, 16)
)
"""Rates that a WebP, which counts milliseconds, cannot state."""


def animation(image: Image.Image, path: Path) -> Source:
    """The frames of an open animation, each drawn in full over those before it."""
    turn = still.turn_of(image, path)
    width, height = turn.size(*image.size)
    coarse = image.format == "WEBP"
    image.seek(_first(image))
    image.load()
    return Source(
        width=width,
        height=height,
        frames=still.frame_count(image) - _first(image),
        rates=(*_USUAL, 1 / _delay(image)) if coarse else (1 / _delay(image),),
        grain=Fraction(1, 1000) if coarse else Fraction(0),
        has_alpha=still.has_alpha(image),
        has_sound=False,
        shots=partial(_shots, image, turn, path),
        notes=(),
    )


def _first(image: Image.Image) -> int:
    """The number of the first frame: a PNG may begin with a picture that is none, for programs
    that know no animations.
    """
    return int(bool(getattr(image, "default_image", False)))


def _delay(image: Image.Image) -> Fraction:
    """How long the current frame is shown, in seconds; known once it is loaded."""
    said = Fraction(image.info.get("duration") or 0) / 1000
    return said.limit_denominator(_FINEST) or _UNSTATED


def _shots(image: Image.Image, turn: Turn, path: Path) -> Iterator[Shot]:
    time = Fraction()
    first, count = _first(image), still.frame_count(image)
    deep = deep_apng.frames(path) if image.format == "PNG" and is_deep(path) else None
    for index in range(first, count):
        try:
            image.seek(index)
            image.load()
        except still.DAMAGE as error:
            raise cut_off(path, index - first) from error
        length = _delay(image)
        if deep is not None:
            yield Shot(time, length, partial(_deep_pixels, next(deep, None), turn, path))
            time += length
            continue
        # Pillow draws the next frame over this one, so a shot keeps its own copy.
        yield Shot(time, length, partial(_pixels, image.copy(), turn))
        time += length
    if is_cut_off(path):
        raise cut_off(path, count - first)


def _deep_pixels(canvas: Pixels | None, turn: Turn, path: Path) -> Pixels:
    if canvas is None:
        raise InputError(f"Cannot read {path}: it has fewer frames than it says; get it anew.")
    return turn.apply(canvas)


def _pixels(image: Image.Image, turn: Turn) -> Pixels:
    mode = "RGBA" if still.has_alpha(image) else "RGB"
    return turn.apply(np.asarray(image.convert(mode)))
