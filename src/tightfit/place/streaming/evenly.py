"""Some of a row, spread evenly over it."""

from __future__ import annotations

from collections.abc import Sequence


def evenly(sizes: Sequence[int], room: int) -> set[int]:
    """Indices of items that have no more than `room` together, as evenly spread as they come.

    Each is taken once the share of the room that is due up to it suffices; what room is left
    then goes to the first that fit.
    """
    total = sum(sizes)
    if total <= room:
        return set(range(len(sizes)))
    chosen: set[int] = set()
    passed = taken = 0
    for at, size in enumerate(sizes):
        passed += size
        if (taken + size) * total <= max(0, room) * passed:
            chosen.add(at)
            taken += size
    for at, size in enumerate(sizes):
        if at not in chosen and taken + size <= room:
            chosen.add(at)
            taken += size
    return chosen
