"""What an allocator will reserve for a run, before it runs: its moves, replayed on a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tightfit.allocators import ASYNC_GRAIN, Full, open_allocator
from tightfit.units import MIB

Moves = Sequence[tuple[int, int]]
"""(key, bytes) for an allocation, (key, 0) for its end, in the order of the run."""


FRAGMENTS = ("native", "async", "expandable")
"""Allocators that take more than they hand out."""


@dataclass(frozen=True)
class Replayed:
    """What a replay came to, in bytes.

    Attributes:
        allocated: the most in blocks in use.
        reserved: the most taken from the driver.
        held: reserved when it was over, before anything was trimmed.
        retries: how often the cache was given back to go on.
        holds: whether every request was served.
    """

    allocated: int
    reserved: int
    held: int
    retries: int
    holds: bool

    @property
    def slack(self) -> int:
        """Peak reserved less peak allocated."""
        return self.reserved - self.allocated


class _Driver:
    """Memory behind an allocator: unbounded, or `limit` bytes."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.reserved = self.peak = 0

    def grow(self, size: int) -> bool:
        if self.limit is not None and self.reserved + size > self.limit:
            return False
        self.reserved += size
        self.peak = max(self.peak, self.reserved)
        return True

    def shrink(self, size: int) -> None:
        self.reserved -= size


def replay(
    moves: Moves,
    allocator: str,
    *,
    held: Iterable[int] = (),
    limit: int | None = None,
    grain: int = ASYNC_GRAIN,
) -> Replayed:
    """Replay `moves` on a model of `allocator`, which holds blocks of the sizes `held` already.

    Args:
        allocator: one of `allocators.KINDS`.
        limit: the most that may be reserved; None is as much as it likes.
        grain: the step of ``async``.
    """
    driver = _Driver(limit)
    model = open_allocator(allocator, driver.grow, driver.shrink, grain=grain)
    peak = 0
    live = {}
    holds = True
    try:
        for size in held:
            model.take(size)
        peak = model.allocated
        for key, size in moves:
            if size:
                live[key] = model.take(size)
                peak = max(peak, model.allocated)
            elif key in live:
                model.give(live.pop(key))
    except Full:
        holds = False
    return Replayed(peak, driver.peak, driver.reserved, model.retries, holds)


def least_reserved(
    moves: Moves, allocator: str, *, held: Sequence[int] = (), grain: int = ASYNC_GRAIN
) -> int:
    """A limit under which a replay of `moves` holds, within 1/64 of the least such.

    An allocator under a limit gives its cache back and goes on, so it gets by with less than it
    would take unbounded; what it cannot get by without is fragments. A whole Wan 2.1 encode that
    allocates 5.0 GiB was seen to fail under ``native`` with 6 GiB, and to hold under the other two.
    """
    free = replay(moves, allocator, held=held, grain=grain)
    low, high = free.allocated - 1, free.reserved
    while high - low > max(MIB, free.allocated // 64):
        middle = (low + high) // 2
        if replay(moves, allocator, held=held, limit=middle, grain=grain).holds:
            high = middle
        else:
            low = middle
    return high
