"""What allocators reserve, replayed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.allocators import KINDS
from tightfit.plan.slack import least_reserved, replay, steady_reserved
from tightfit.units import MIB


def _runs() -> st.SearchStrategy[list[tuple[int, int]]]:
    """Sequences in which each allocation may end later."""

    def ordered(sizes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        moves: list[tuple[int, int]] = []
        ends: dict[int, list[int]] = {}
        for at, (size, life) in enumerate(sizes):
            moves += [(key, 0) for key in ends.pop(at, [])]
            moves.append((at, size))
            ends.setdefault(at + life, []).append(at)
        return moves

    pair = st.tuples(st.integers(1, 64 * MIB), st.integers(1, 6))
    return st.lists(pair, min_size=1, max_size=40).map(ordered)


@given(_runs(), st.sampled_from(KINDS))
def test_reserved_is_never_below_allocated(moves: list[tuple[int, int]], kind: str) -> None:
    """Nor is allocated below what lives at once."""
    done = replay(moves, kind)
    assert done.holds
    assert done.reserved >= done.allocated >= max(size for _, size in moves)
    assert done.slack == done.reserved - done.allocated


@given(_runs(), st.sampled_from(KINDS))
def test_what_it_reserved_is_enough_of_a_limit(moves: list[tuple[int, int]], kind: str) -> None:
    """And one byte less than what lives at once never is."""
    free = replay(moves, kind)
    assert replay(moves, kind, limit=free.reserved) == free
    assert not replay(moves, kind, limit=free.allocated - 1).holds


@given(_runs(), st.sampled_from(KINDS))
def test_the_least_that_holds_lies_between_allocated_and_reserved(
    moves: list[tuple[int, int]], kind: str
) -> None:
    """It holds, and the free replay reserves at least as much."""
    free = replay(moves, kind)
    least = least_reserved(moves, kind)
    assert free.allocated <= least <= free.reserved
    under = replay(moves, kind, limit=least)
    assert under.holds
    assert under.reserved <= least


@given(_runs(), st.sampled_from(KINDS))
def test_under_the_steady_limit_a_loop_needs_no_retries(
    moves: list[tuple[int, int]], kind: str
) -> None:
    """From the second run on, replayed as one sequence; it is no less than one run needs."""
    ended = [*moves, *((key, 0) for key, size in moves if size)]
    limit = steady_reserved(moves, kind)
    first, *others = (replay(ended * runs, kind, limit=limit) for runs in (1, 2, 3))
    assert first.holds
    for after in others:
        assert after.holds
        assert after.retries == first.retries
        assert after.reserved <= limit


def test_a_run_that_holds_once_may_not_hold_twice() -> None:
    """Under the least limit, the second fails on what the first left in the cache."""
    sizes = [(0, 22), (1, 27), (0, 0), (2, 5), (2, 0), (3, 36), (3, 0), (1, 0)]
    moves = [(key, size * MIB) for key, size in sizes]
    least, steady = least_reserved(moves, "native"), steady_reserved(moves, "native")
    assert replay(moves, "native", limit=least).holds
    assert not replay(moves * 2, "native", limit=least).holds
    assert replay(moves * 9, "native", limit=steady).holds
    assert steady > least


def test_a_limit_below_what_lives_at_once_does_not_hold() -> None:
    """Whatever the allocator gives back."""
    moves = [(1, 32 * MIB), (2, 32 * MIB), (1, 0), (2, 0)]
    assert not replay(moves, "native", limit=63 * MIB).holds
    assert replay(moves, "native", limit=64 * MIB).holds


def test_the_same_run_is_the_same_every_time() -> None:
    """Ties among free blocks go by address, not by chance."""
    moves = [(n, (n * 7919 % 31 + 1) * MIB) for n in range(200)]
    moves = [step for n, step in enumerate(moves) for step in (step, (n - 9, 0))]
    assert len({replay(moves, "native").reserved for _ in range(5)}) == 1


def test_seed_2_async_reserves_in_steps_of_32_mib() -> None:
    """Measured on an H200, for modules of 320, 40 and 10 MiB placed one after another."""
    sizes = [320] * 4 + [40] * 4 + [10] * 4
    reserved = [
        replay([], "async", held=[size * MIB for size in sizes[:count]]).reserved
        for count in range(len(sizes) + 1)
    ]
    grown = [(two - one) // MIB for one, two in pairwise(reserved)]
    assert grown == [320] * 4 + [64, 32, 32, 32] + [32, 0, 0, 32]


@pytest.mark.parametrize(("kind", "step"), [("native", 2 * MIB), ("async", 32 * MIB)])
def test_what_is_held_before_counts(kind: str, step: int) -> None:
    """Weights lie there while the run moves."""
    alone = replay([(1, 64 * MIB), (1, 0)], kind)
    beside = replay([(1, 64 * MIB), (1, 0)], kind, held=[100 * MIB])
    assert beside.allocated == alone.allocated + 100 * MIB
    assert 0 <= beside.reserved - alone.reserved - 100 * MIB <= step
