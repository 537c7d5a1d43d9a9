"""The smallest card for a job, and the largest job for a card: bisection on what fits.

Whatever fits still fits with more memory or a smaller job, so each answer is found in about as
many looks as it has binary digits. Looks go from small to large, since a large job is dear to look
at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tightfit.plan.size import LARGEST_SIDE, MOST_FRAMES, Size
from tightfit.units import MIB

MOST_BYTES = 2**44
"""16 TiB: no card is larger."""


@dataclass(frozen=True)
class Solved:
    """An answer.

    Attributes:
        value: None is that not even the easiest case fits.
        at_limit: nothing better was looked at, since there is none; the true limit may lie beyond.
    """

    value: int | None
    at_limit: bool = False


@dataclass(frozen=True)
class SolvedSize:
    """Likewise for the size of a job."""

    value: Size | None
    at_limit: bool = False


def smallest_bytes(
    fits: Callable[[int], bool], *, step: int = MIB, most: int = MOST_BYTES
) -> Solved:
    """The fewest bytes with which the job fits, to the `step`.

    Args:
        fits: whether it does with so many bytes of budget or of card.
        step: the answer is a multiple of it.
        most: never look beyond.
    """
    found = _last(lambda count: not fits(count * step), most // step)
    if found is None:
        return Solved(step, at_limit=True)
    return Solved(None) if found == most // step else Solved((found + 1) * step)


def largest_size(
    fits: Callable[[Size], bool], size: Size, *, step: int = 16, most: int = LARGEST_SIDE
) -> SolvedSize:
    """The largest picture (or frame) that fits, of the ratio of `size`, in multiples of `step`.

    The longer side is a multiple of `step`; the shorter one is rounded to the nearest.
    """
    if size.width >= size.height:
        ratio, name, other = size.height / size.width, "width", "height"
    else:
        ratio, name, other = size.width / size.height, "height", "width"

    def of(count: int) -> Size:
        shorter = max(1, round(count * ratio)) * step
        return replace(size, **{name: count * step, other: shorter})

    found = _last(lambda count: fits(of(count)), most // step)
    return SolvedSize(None if found is None else of(found), found == most // step)


def most_frames(
    fits: Callable[[Size], bool],
    size: Size,
    *,
    step: int = 4,
    lead: int = 1,
    most: int = MOST_FRAMES,
) -> SolvedSize:
    """The longest clip of the frame of `size` that fits: ``step × k + lead`` frames."""

    def of(count: int) -> Size:
        frames = (count - 1) * step + lead if lead else count * step
        return replace(size, frames=frames)

    last = (most - lead) // step + (1 if lead else 0)
    found = _last(lambda count: fits(of(count)), last)
    return SolvedSize(None if found is None else of(found), found == last)


def _last(holds: Callable[[int], bool], most: int) -> int | None:
    """The largest of 1 … `most` for which `holds`; None if not even 1; once false, always false."""
    if most < 1 or not holds(1):
        return None
    low, high = 1, 2
    while high <= most and holds(high):
        low, high = high, 2 * high
    if high > most:
        if low == most or holds(most):
            return most
        high = most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
