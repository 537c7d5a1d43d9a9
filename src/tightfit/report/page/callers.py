"""Which code held what, from the fine level of a trace: at the height of each stretch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.report.page.fields import Event, at, text, whole

MOST_LOOKS = 300
_NAMED = 6
_NOBODY = "code that is not known"


@dataclass(frozen=True)
class Look:
    """What was live at a moment: (code, bytes), the most first, and how much in all."""

    time: float
    held: tuple[tuple[str, int], ...]
    total: int


def callers(events: Sequence[Event], *, most: int = MOST_LOOKS) -> list[Look]:
    """At most `most` looks, in order, each at the height of its stretch of `allocate` and `free`.

    What was allocated before the trace began, or while events were dropped, is not in it.
    """
    moves = [event for event in events if event["event"] in ("allocate", "free")]
    if not moves:
        return []
    changes = _changes(moves)
    group = -(-len(moves) // most)
    heights, live = {}, 0
    for first in range(0, len(moves), group):
        best, top = first, -1
        for index in range(first, min(first + group, len(moves))):
            live += changes[index][1]
            if live > top:
                best, top = index, live
        heights[best] = top
    looks: list[Look] = []
    held: Counter[str] = Counter()
    for index, (by, change) in enumerate(changes):
        held[by] += change
        if index in heights:
            named = tuple((name, size) for name, size in held.most_common(_NAMED) if size > 0)
            looks.append(Look(at(moves[index]), named, heights[index]))
    return looks


def _changes(moves: Sequence[Event]) -> list[tuple[str, int]]:
    """(code, bytes more) for each; a free of what was never seen changes nothing.

    Where addresses are not told, a free is of the newest of that size.
    """
    owners: dict[int, tuple[str, int]] = {}
    by_size: dict[int, list[str]] = {}
    found = []
    for event in moves:
        address, size = whole(event, "address"), whole(event, "bytes") or 0
        if event["event"] == "allocate":
            by = text(event, "by") or _NOBODY
            if address is not None:
                owners[address] = (by, size)
            else:
                by_size.setdefault(size, []).append(by)
            found.append((by, size))
        else:
            by, known = _NOBODY, 0
            if address is not None:
                by, known = owners.pop(address, (_NOBODY, 0))
            elif by_size.get(size):
                by, known = by_size[size].pop(), size
            found.append((by, -known))
    return found
