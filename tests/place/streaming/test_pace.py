"""The ring keeps the pace that the planner counts on: copies never idle while a slot is free."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.place.streaming.clock import Timed, TimedLane
from tightfit.card import open_card
from tightfit.place.streaming.arena import Arena, Layout
from tightfit.place.streaming.ring import Ring
from tightfit.plan.streaming.pieces import Piece
from tightfit.plan.streaming.simulate import step_seconds

RATE = 1000.0
STEPS = 3
"""As many as `step_seconds` plays through."""


def last_step(sizes: list[int], works: list[float], stays: list[bool], *, slots: int) -> float:
    """Seconds of the last of several steps of a real ring on queues that know the time."""
    lane, compute = TimedLane(RATE), Timed()
    bytes_of = [torch.zeros(size, dtype=torch.uint8) for size in sizes]
    arenas = [
        None if stay else Arena(Layout.of([b]), [b])
        for b, stay in zip(bytes_of, stays, strict=True)
    ]
    ring = Ring(open_card("cpu"), lane, compute, [a for a in arenas if a], slots=slots)
    ring.ahead()
    before = 0.0
    for _ in range(STEPS):
        before = compute.now
        for arena, work in zip(arenas, works, strict=True):
            if arena is not None:
                ring.take(arena, "me")
            compute.now += work
            if arena is not None:
                ring.leave(arena, "me")
    assert ring.copies.late == 0
    return compute.now - before


BLOCKS = st.lists(
    st.tuples(st.integers(1, 300), st.integers(1, 300), st.booleans()), min_size=2, max_size=8
)


@given(BLOCKS, st.integers(2, 4))
def test_a_step_takes_as_long_as_the_planner_says(
    blocks: list[tuple[int, int, bool]], slots: int
) -> None:
    """Blocks of any size and work, some resident in between, over the boundary between steps."""
    sizes, works, stays = ([*each] for each in zip(*blocks, strict=True))
    assume(stays.count(False) > slots)
    seconds = [work / RATE for work in works]
    whole = sum(seconds)
    pieces = [
        Piece(str(at), size, size, size, 0, work / whole, stays=False)
        for at, (size, work) in enumerate(zip(sizes, seconds, strict=True))
    ]
    told = step_seconds(pieces, stays, slots=slots, compute=whole, link=RATE)
    assert last_step(sizes, seconds, stays, slots=slots) == pytest.approx(told)


@pytest.mark.parametrize("slots", [2, 3])
def test_where_the_link_binds_it_is_never_idle(slots: int) -> None:
    """Equal blocks, each copied for longer than its share of compute, a resident one beside each:
    B/W to the last digit, the boundary between steps included."""
    sizes, stays = [100, 1] * 6, [False, True] * 6
    assert last_step(sizes, [0.04] * 12, stays, slots=slots) == pytest.approx(6 * 100 / RATE)


@pytest.mark.parametrize("slots", [2, 3])
def test_where_compute_binds_it_never_waits(slots: int) -> None:
    """C to the last digit."""
    sizes, stays = [100, 1] * 6, [False, True] * 6
    assert last_step(sizes, [0.06] * 12, stays, slots=slots) == pytest.approx(12 * 0.06)
