"""Where in the ring's memory each master comes to lie: arithmetic alone.

In slots, each as large as the largest master, every one takes a whole slot, and few can be ahead.
Side by side, small ones share the room, and more of what comes next is there before it is needed.
Which of the two holds up compute less depends on the sizes, so both are played through.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.place.streaming.layout import ALIGNMENT

Laps = tuple[tuple[int, ...], ...]
"""For each pass through all masters, until it begins anew: the first byte of each."""

_MOST_LAPS = 4


def slot_of(sizes: Sequence[int]) -> int:
    """Bytes of a slot that each of these sizes fits into."""
    return _rounded(max(sizes))


def laps_of(sizes: Sequence[int], slots: int) -> Laps:
    """Where masters of `sizes`, in the order they come in, lie in the memory of `slots` slots."""
    slot = slot_of(sizes)
    taken = [_rounded(size) for size in sizes]
    found = [_in_slots(taken, slot, slots), _side_by_side(taken, slot * slots)]
    return min(found, key=lambda laps: _seconds(laps, taken))


def _rounded(size: int) -> int:
    """Even what is empty lies somewhere, and beside the others."""
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT


def _in_slots(sizes: Sequence[int], slot: int, slots: int) -> Laps:
    laps: list[tuple[int, ...]] = []
    at = 0
    while at or not laps:
        laps.append(tuple((at + n) % slots * slot for n in range(len(sizes))))
        at = (at + len(sizes)) % slots
        if len(laps) == _MOST_LAPS:
            break
    return tuple(laps)


def _side_by_side(sizes: Sequence[int], room: int) -> Laps:
    """Each behind the one before it; from the start again, where that would pass the end."""
    laps: list[tuple[int, ...]] = []
    begun: list[int] = []
    end = 0
    while len(laps) < _MOST_LAPS:
        if end in begun:
            return tuple(laps[begun.index(end) :])
        begun.append(end)
        lap = []
        for size in sizes:
            start = 0 if end + size > room else end
            lap.append(start)
            end = start + size
        laps.append(tuple(lap))
    return tuple(laps)


def _seconds(laps: Laps, sizes: Sequence[int]) -> float:
    """Of all laps and once more, a lap, where a byte takes as long to be copied as to be used.

    That is where waits show the most.
    """
    there: list[tuple[int, int, float]] = []  # start, end, when it is done with
    copied = done = before = 0.0
    rounds = [*laps, *laps]
    for lap in rounds:
        before = done if lap is rounds[len(laps)] else before
        for start, size in zip(lap, sizes, strict=True):
            end = start + size
            under = [free for first, last, free in there if first < end and start < last]
            there = [each for each in there if not (each[0] < end and start < each[1])]
            copied = max([copied, *under]) + size
            done = max(done, copied) + size
            there.append((start, end, done))
    return (done - before) / len(laps)
