"""Frames of a clip one after another, with their times, each converted only if it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy.typing as npt
import torch

Pixels = npt.NDArray[Any]
"""Samples [H,W,C]: uint8 in 0..255 or uint16 in 0..65535."""


@dataclass(frozen=True, eq=False)
class Shot:
    """One frame of a source.

    Attributes:
        time: when it is shown, in seconds after the first frame.
        length: for how long, in seconds; None where the file does not say.
        pixels: converts to upright RGB [H,W,3] or, where there is transparency, RGBA [H,W,4] as
            stored; in any thread, as long as the source is open.
    """

    time: Fraction
    length: Fraction | None
    pixels: Callable[[], Pixels]


@dataclass(frozen=True, eq=False)
class Source:
    """An open clip whose frames can be drawn once.

    Attributes:
        width, height: upright, in pixels.
        frames: how many, where the header says so.
        rates: frame rates that the header names, most trusted first.
        origin: when the first frame is shown by the file's own clock, in seconds; its sound goes
            by the same.
        grain: the step to which the file rounds its times, in seconds.
        shots: the frames in order of showing. At the end it raises `InputError` where the file
            is cut off or damaged; who stops earlier is not disturbed.
        notes: what a report must say about the reading.
    """

    width: int
    height: int
    frames: int | None
    rates: tuple[Fraction, ...]
    grain: Fraction
    has_alpha: bool
    has_sound: bool
    shots: Callable[[], Iterator[Shot]]
    notes: tuple[str, ...]
    origin: Fraction = Fraction(0)


class Follower(Protocol):
    """Is told how far the reading of a clip has come, by the thread that reads it."""

    def begins(self, frames: torch.Tensor) -> None:
        """All frames that are expected, [T,3,H,W], of which the first is there.

        Not called where nobody knows how many come. Where others come in the end, the clip has
        another tensor.
        """

    def laid(self, count: int, size: int) -> None:
        """So many frames are there, of so many bytes in all; may wait, and may raise to stop."""


def at_rate(shots: Iterable[Shot], fps: Fraction) -> Iterator[Shot]:
    """The frames to show at 0, 1/fps, 2/fps … until the last frame has been shown.

    For each of these times it is the nearest frame, if one lies within half a step; else the
    frame on show then. One frame of the source is held, so memory does not grow.
    """
    half = 1 / (2 * fps)
    tick = 0
    shown: Shot | None = None
    for shot in shots:
        if shown is None:
            shown = shot
            continue
        while (at := tick / fps) < shot.time:
            ahead = shot.time - at
            if ahead <= half and ahead < abs(at - shown.time):
                break
            yield shown
            tick += 1
        shown = shot
    if shown is None:
        return
    end = shown.time + (shown.length or Fraction())
    while (at := tick / fps) <= shown.time or at + half <= end:
        yield shown
        tick += 1


def steady_rate(
    times: Sequence[Fraction], rates: Sequence[Fraction], *, grain: Fraction
) -> Fraction | None:
    """The frame rate that explains two or more rising `times` to within `grain`; else None.

    Header rates come first, then the rate that the first and the last time make.
    """
    for rate in (*rates, average_rate(times)):
        if all(abs(time - times[0] - k / rate) <= grain for k, time in enumerate(times)):
            return rate
    return None


def average_rate(times: Sequence[Fraction]) -> Fraction:
    """Frames per second over two or more rising `times`, as a fraction with a small denominator."""
    slowest = Fraction(1, 1001)
    return max(((len(times) - 1) / (times[-1] - times[0])).limit_denominator(1001), slowest)
