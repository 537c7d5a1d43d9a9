"""The ring keeps the pace that the planner counts on: copies never idle while a slot is free."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.place.streaming.clock import Timed, TimedLane
from tightfit.card import open_card
from tightfit.place.streaming.arena import Arena, Layout
from tightfit.place.streaming.layout import ALIGNMENT
from tightfit.place.streaming.ring import Ring
from tightfit.plan.streaming.pieces import Piece
from tightfit.plan.streaming.simulate import step_seconds

RATE = 1000.0 * ALIGNMENT
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
    st.tuples(st.integers(1, 300), st.integers(1, 300), st.booleans()), min_size=5, max_size=9
)


@given(BLOCKS, st.integers(2, 4), st.booleans())
def test_a_step_takes_as_long_as_the_planner_says(
    blocks: list[tuple[int, int, bool]], slots: int, equal: bool
) -> None:
    """Blocks of any size and work, some resident in between, over the boundary between steps.

    To the digit where they are of one size. Else they lie side by side where that is better for
    compute as long as copies; where it is not, it can be a little worse.
    """
    sizes, works, stays = ([*each] for each in zip(*blocks, strict=True))
    stays = [stay and at > slots for at, stay in enumerate(stays)]
    assume(stays.count(False) > slots)
    sizes = [ALIGNMENT * (sizes[0] if equal else size) for size in sizes]
    seconds = [work / 1000 for work in works]
    whole = sum(seconds)
    pieces = [
        Piece(str(at), size, size, size, 0, work / whole, stays=False)
        for at, (size, work) in enumerate(zip(sizes, seconds, strict=True))
    ]
    told = step_seconds(pieces, stays, slots=slots, compute=whole, link=RATE)
    seen = last_step(sizes, seconds, stays, slots=slots)
    if equal:
        assert seen == pytest.approx(told)
    assert whole * 0.999 <= seen <= told * 1.5


def test_small_weights_share_the_room_of_large_ones() -> None:
    """Layers as a transformer block has them, and attention that needs none: in two slots the link
    is idle meanwhile, side by side it is not."""
    sizes = [ALIGNMENT * n for n in (27, 27, 27, 27, 108, 54, 54)] * 4
    works = [*[0.01] * 3, 0.14, 0.05, 0.05, 0.05] * 4
    stays = [False] * len(sizes)
    pieces = [
        Piece(str(at), size, size, size, 0, work / sum(works), stays=False)
        for at, (size, work) in enumerate(zip(sizes, works, strict=True))
    ]
    in_slots = step_seconds(pieces, stays, slots=2, compute=sum(works), link=RATE)
    bound = max(sum(works), sum(sizes) / RATE)
    seen = last_step(sizes, works, stays, slots=2)
    assert in_slots > 1.1 * bound
    assert seen < 1.05 * bound


@pytest.mark.parametrize("slots", [2, 3])
def test_where_the_link_binds_it_is_never_idle(slots: int) -> None:
    """Equal blocks, each copied for longer than its share of compute, a resident one beside each:
    B/W to the last digit, the boundary between steps included."""
    sizes, stays = [100 * ALIGNMENT, 1] * 6, [False, True] * 6
    assert last_step(sizes, [0.04] * 12, stays, slots=slots) == pytest.approx(0.6)


@pytest.mark.parametrize("slots", [2, 3])
def test_where_compute_binds_it_never_waits(slots: int) -> None:
    """C to the last digit."""
    sizes, stays = [100 * ALIGNMENT, 1] * 6, [False, True] * 6
    assert last_step(sizes, [0.06] * 12, stays, slots=slots) == pytest.approx(12 * 0.06)
