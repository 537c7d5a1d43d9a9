"""While weights are loaded: reserved is watched, and what is not yet placed is planned again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tightfit.allocators import LARGE_ROUNDING, LARGE_SEGMENT, SMALL_LIMIT
from tightfit.plan.streaming.pieces import Piece
from tightfit.plan.streaming.residency import Residency, settle
from tightfit.plan.streaming.ring import NO_RING, Option, Ring, slotted


@dataclass(frozen=True)
class Drift:
    """How far reserved has drifted from allocated, and the grain that this shows.

    An allocator takes memory from the driver in steps. Every rise of reserved is a whole number of
    steps, so their greatest common divisor is never below the true step; it only ever falls.

    Attributes:
        allocated, reserved: as last seen.
        grain: None is that no rise was seen yet, nor known from before.
        growth: the most by which the gap grew in one look.
    """

    allocated: int
    reserved: int
    grain: int | None = None
    growth: int = 0

    @classmethod
    def at_first(
        cls, allocator: str, *, allocated: int = 0, reserved: int = 0, grain: int | None = None
    ) -> Drift:
        """Before anything was seen but the allocator's kind, and its `grain` under ``async``.

        PyTorch's own allocators are known to take no larger steps than these; the first rise may be
        a ring of gigabytes, which is nobody's step. Where it keeps segments of several sizes, as
        ``native`` does, the dearest may be met last: a small request that takes a large segment for
        itself.
        """
        growth = LARGE_SEGMENT - SMALL_LIMIT if allocator == "native" else 0
        known = {"native": LARGE_ROUNDING, "expandable": LARGE_SEGMENT, "async": grain}
        return cls(allocated, reserved, known.get(allocator), growth)

    @property
    def gap(self) -> int:
        """Reserved less allocated."""
        return self.reserved - self.allocated

    def after(self, *, allocated: int, reserved: int) -> Drift:
        """What is known after one more look."""
        risen = reserved - self.reserved
        grain = self.grain
        if risen > 0:
            grain = math.gcd(grain or 0, risen)
        growth = max(self.growth, (reserved - allocated) - self.gap)
        return Drift(allocated, reserved, grain, growth)

    def reserved_with(self, more: int) -> int:
        """What reserved may come to with `more` bytes: in whole grains, the gap not used again."""
        if not more:
            return self.reserved
        step = self.grain or 1
        rounded = -(-more // step) * step
        return self.reserved + max(rounded, more + self.growth)

    def most_within(self, room: int) -> int:
        """The most bytes with which `reserved_with` is at most `room`, never negative."""
        left = room - self.reserved
        step = self.grain or 1
        return max(0, min(left // step * step, left - self.growth))


def replan(
    waiting: Sequence[Piece], drift: Drift, *, room: int, ring: Ring = NO_RING, slots: int = 2
) -> Residency | None:
    """Which of the pieces that are not yet placed can still be resident.

    Args:
        waiting: in the order they run in, at the level that the ring takes.
        drift: what has been seen of reserved and allocated.
        room: what reserved may come to with all resident weights (and the ring, if there is none
            yet).
        ring: what is there already. Without one, streaming needs one, and it comes out of `room`.
        slots: of that one, at most.

    Returns:
        None if what cannot be streamed is over the room. Else reserved stays within it:
        ``drift.reserved_with(resident_bytes + bytes of a new ring) <= room``, unless it was over
        it before.
    """
    pieces = tuple(waiting)
    total = sum(piece.bytes for piece in pieces)
    whole = Option(ring, pieces, -1, total, 0, 0, 0, False)
    offered = list(slotted(pieces, "block", slots=slots))
    # Whatever drifts later, what is still waiting must be able to pass through the ring: one for
    # the smaller pieces alone is taken only where no other fits.
    every = [option for option in offered if option.everything]
    if every and min(option.least for option in every) <= drift.most_within(room):
        offered = every
    there = 0
    if ring.slots:
        there = ring.bytes
        able = [p for p in pieces if not p.stays and p.slot <= ring.slot_bytes]
        free, moved = sum(p.bytes for p in able), sum(p.moved for p in able)
        offered = [
            Option(ring, pieces, ring.slot_bytes, total - free, free, moved, 0, free == total)
        ]
    planned = settle(whole, offered, room=drift.most_within(room) + there, budget=room)
    if planned is None:
        return None
    return replace(planned, ring=ring) if ring.slots else planned
