"""Memory over time as single moves of the allocator add up to: every peak and floor is in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tightfit.report.page.curves import samples_of
from tightfit.report.page.fields import Event, at, text, whole
from tightfit.report.trace_file import Trace

ALLOCATED = ("allocate", "free")
RESERVED = ("reserve", "release")
_NEAR = 0.03
"""Seconds: the clock of an allocator's history and that of a look at the card may differ a little,
so a look counts only where no move is as near as this."""

Sample = tuple[float, int]


def samples(trace: Trace, moves: tuple[str, str], looks: Sequence[str], named: str) -> list[Sample]:
    """Samples (seconds, bytes) of a figure: after each move, with looks where nothing moves.

    Looks at the card alone where the trace lacks moves: it is coarse, has dropped some, or says
    that some are unseen.

    Args:
        trace: any.
        moves: what is taken, and what is given back.
        looks: kinds of events that say how the card looks then.
        named: the figure there.
    """
    looked = samples_of(trace.events, looks, named)
    if text(trace.header, "level") != "fine" or trace.dropped or any(trace.of("unseen")):
        return looked
    summed = _sums(trace.events, moves)
    if not summed or min(value for _, value in summed) < 0:
        return looked
    times = sorted(time for time, _ in summed)
    return [*summed, *(look for look in looked if _alone(look[0], times))]


def _sums(events: Sequence[Event], moves: tuple[str, str]) -> list[Sample]:
    """After each move, all that were taken less all that were given back."""
    held, found = 0, []
    for event in sorted((each for each in events if each["event"] in moves), key=at):
        size = whole(event, "bytes") or 0
        held += size if event["event"] == moves[0] else -size
        found.append((at(event), held))
    return found


def _alone(time: float, times: Sequence[float]) -> bool:
    """Whether no move is near."""
    after = bisect_left(times, time - _NEAR)
    return after == len(times) or times[after] > time + _NEAR
