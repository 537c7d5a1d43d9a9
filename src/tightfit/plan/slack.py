"""What an allocator will reserve for a run, before it runs: its moves, replayed on a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tightfit.allocators import ASYNC_GRAIN, Block, Full, open_allocator
from tightfit.units import MIB

Moves = Sequence[tuple[int, int]]
"""(key, bytes) for an allocation, (key, 0) for its end, in the order of the run."""


FRAGMENTS = ("native", "async", "expandable")
"""Allocators that take more than they hand out."""
_SETTLING, _STEADY = 1, 2
"""Runs that may have retries, which fill the cache, and runs after them that may not."""


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
    return _run(moves, allocator, held=held, limit=limit, grain=grain)


def _run(
    moves: Moves,
    allocator: str,
    *,
    held: Iterable[int],
    limit: int | None,
    grain: int,
    passes: int = 1,
    quiet: int = 1,
) -> Replayed:
    """`moves` so many times over; it does not hold where one from `quiet` on needed a retry."""
    driver = _Driver(limit)
    model = open_allocator(allocator, driver.grow, driver.shrink, grain=grain)
    take, give = model.take, model.give
    peak = 0
    live: dict[int, Block] = {}
    holds = True
    try:
        for size in held:
            take(size)
        peak = model.allocated
        for number in range(passes):
            before = model.retries
            for key, size in moves:
                if size:
                    live[key] = take(size)
                    if model.allocated > peak:
                        peak = model.allocated
                elif key in live:
                    give(live.pop(key))
            if number + 1 < passes:
                for block in live.values():
                    give(block)
                live.clear()
            if number >= quiet and model.retries > before:
                holds = False
                break
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


def steady_reserved(
    moves: Moves, allocator: str, *, held: Sequence[int] = (), grain: int = ASYNC_GRAIN
) -> int:
    """A limit under which `moves`, run over and over, soon need no more retries.

    Under the least limit that one run holds with (`least_reserved`), the next may not: what the
    first left in the cache lies elsewhere. A retry waits for the card, frees and allocates, which
    takes tens of milliseconds, in every call of a loop. SDXL's UNet at 1024x1024, which allocates
    326 MiB under ``native``, holds once with 378 MiB, fails at the second call, and settles with
    400; unbounded it takes 552.

    The first `_SETTLING` run may have retries, and `_STEADY` after it have none: that is replayed
    for the limit returned. Which limits settle is not told by those that do not, since more room
    may hurt: so they are tried one by one, from the least up, in steps that grow. At most what the
    runs reserve unbounded.
    """
    passes = _SETTLING + _STEADY

    def runs(limit: int | None) -> Replayed:
        return _run(
            moves,
            allocator,
            held=held,
            limit=limit,
            grain=grain,
            passes=passes,
            quiet=_SETTLING,
        )

    most = runs(None)
    limit = least_reserved(moves, allocator, held=held, grain=grain)
    step = max(MIB, most.allocated // 32)
    while limit < most.reserved:
        if runs(limit).holds:
            return limit
        limit, step = limit + step, step + step // 2
    return most.reserved
