"""While weights are loaded: what has been seen of the allocator changes what is still to come."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.allocators import open_allocator
from tightfit.plan.streaming.pieces import Piece
from tightfit.plan.streaming.replan import Drift, replan
from tightfit.plan.streaming.ring import NO_RING, Ring
from tightfit.units import KIB, MIB

CARD = 256 * MIB
SLOT = 20 * MIB
SEED_TRACE = [(320, 320)] * 64 + [(64, 40), (32, 40), (32, 40), (32, 40), (32, 10), (0, 0)]
"""(reserved, allocated) added by each module, in MiB: cudaMallocAsync under FLUX.2."""


def pieces_of(sizes: list[int]) -> tuple[Piece, ...]:
    """Of these sizes."""
    whole = sum(sizes) or 1
    return tuple(
        Piece(str(at), size, size, size, 0, size / whole, False) for at, size in enumerate(sizes)
    )


def load(pieces: tuple[Piece, ...], kind: str, grain: int, drift: Drift) -> tuple[int, int]:
    """Place what the plan lets in; (reserved at the end, pieces that are resident)."""
    taken = 0

    def grow(size: int) -> bool:
        nonlocal taken
        if taken + size > CARD:
            return False
        taken += size
        return True

    def shrink(size: int) -> None:
        nonlocal taken
        taken -= size

    allocator = open_allocator(kind, grow, shrink, grain=grain)
    ring = Ring("block", SLOT, 2)
    for _ in range(ring.slots):
        allocator.take(SLOT)
        drift = drift.after(allocated=allocator.allocated, reserved=allocator.reserved)
    resident = 0
    for at, piece in enumerate(pieces):
        planned = replan(pieces[at:], drift, room=CARD, ring=ring)
        assert planned is not None
        if planned.stays[0]:
            allocator.take(piece.bytes)  # raises `Full` where the plan let in too much
            resident += 1
            drift = drift.after(allocated=allocator.allocated, reserved=allocator.reserved)
    return allocator.reserved, resident


@pytest.mark.parametrize("grain", [2 * MIB, 32 * MIB])
def test_a01_no_weight_that_the_plan_lets_in_is_refused(grain: int) -> None:
    """Random weights of 10 KB to 20 MB on 256 MiB, 100 seeds; nothing is told of the grain."""
    for seed in range(100):
        draw = random.Random(seed)
        pieces = pieces_of([draw.randint(10 * KIB, SLOT) for _ in range(40)])
        reserved, resident = load(pieces, "async", grain, Drift(0, 0))
        assert reserved <= CARD
        assert resident >= 8, "room for many was left unused"


def test_a01_the_native_allocator_is_met_with_what_its_model_knows() -> None:
    """Its steps depend on the request: 20 MiB at most beyond it, which a plan may be told."""
    for seed in range(30):
        draw = random.Random(seed)
        pieces = pieces_of([draw.randint(10 * KIB, SLOT) for _ in range(40)])
        reserved, resident = load(pieces, "native", 0, Drift(0, 0, growth=20 * MIB))
        assert reserved <= CARD
        assert resident >= 8


def test_the_grain_is_learnt_from_the_trace_of_the_seed() -> None:
    """320 MiB at a time show nothing; four modules of 40 MiB show 32."""
    drift = Drift(0, 0)
    grains = []
    for reserved, allocated in SEED_TRACE:
        drift = drift.after(
            allocated=drift.allocated + allocated * MIB, reserved=drift.reserved + reserved * MIB
        )
        grains.append(drift.grain)
    assert grains[63] == 320 * MIB
    assert grains[-1] == 32 * MIB
    assert drift.gap == (21632 - 21610) * MIB
    assert drift.growth == 24 * MIB


def test_a_grain_that_is_known_from_before_keeps_its_use() -> None:
    """Then the first large blocks do not stand for steps of their own size."""
    drift = Drift(0, 0, grain=32 * MIB).after(allocated=320 * MIB, reserved=320 * MIB)
    assert drift.grain == 32 * MIB
    assert drift.reserved_with(40 * MIB) == 384 * MIB


SIZES = st.lists(st.integers(0, 40 * MIB), max_size=20)
DRIFTS = st.builds(
    lambda allocated, gap, grain, growth: Drift(allocated, allocated + gap, grain, growth),
    st.integers(0, CARD),
    st.integers(0, 64 * MIB),
    st.sampled_from([None, 2 * MIB, 32 * MIB]),
    st.integers(0, 32 * MIB),
)


@given(SIZES, DRIFTS, st.integers(0, 2 * CARD), st.sampled_from([NO_RING, Ring("block", SLOT, 2)]))
def test_it_never_plans_over_the_room(
    sizes: list[int], drift: Drift, room: int, ring: Ring
) -> None:
    """A new ring included; what cannot be streamed and does not fit is said by None."""
    planned = replan(pieces_of(sizes), drift, room=room, ring=ring)
    if planned is None:
        return
    new_ring = 0 if ring.slots else planned.ring.bytes
    added = planned.resident_bytes + new_ring
    assert not added or drift.reserved_with(added) <= room
    assert planned.resident_bytes + planned.streamed_bytes == sum(sizes)
    if planned.streamed:
        assert all(piece.bytes <= planned.ring.slot_bytes for piece in planned.streamed)


@given(SIZES, DRIFTS, st.integers(0, 2 * CARD))
def test_the_same_is_planned_for_the_same(sizes: list[int], drift: Drift, room: int) -> None:
    """No clock, no order of a set, no chance."""
    ring = Ring("block", 40 * MIB, 2)
    assert replan(pieces_of(sizes), drift, room=room, ring=ring) == replan(
        pieces_of(sizes), drift, room=room, ring=ring
    )


@given(SIZES, DRIFTS, st.integers(0, 2 * CARD), st.integers(0, 64 * MIB))
def test_a_gap_that_grew_never_lets_more_stay(
    sizes: list[int], drift: Drift, room: int, more: int
) -> None:
    """Blocks that were to be placed are streamed instead."""
    ring = Ring("block", 40 * MIB, 2)
    grown = Drift(drift.allocated, drift.reserved + more, drift.grain, drift.growth)
    before = replan(pieces_of(sizes), drift, room=room, ring=ring)
    after = replan(pieces_of(sizes), grown, room=room, ring=ring)
    assert before is not None
    assert after is not None
    assert after.resident_bytes <= max(before.resident_bytes, drift.most_within(room))


def test_a_plan_without_streaming_finds_room_for_a_ring_when_the_gap_grows() -> None:
    """Everything was to stay; now that not all can, two slots come out of the same room."""
    pieces = pieces_of([10 * MIB] * 10)
    room = 100 * MIB
    assert replan(pieces, Drift(0, 0), room=room) is not None
    planned = replan(pieces, Drift(0, 15 * MIB), room=room)
    assert planned is not None
    assert planned.ring.slots == 2
    assert planned.resident_bytes + planned.ring.bytes <= 85 * MIB
    assert planned.resident_bytes == 60 * MIB


@pytest.mark.parametrize("grain", [2 * MIB, 32 * MIB, 48 * MIB])
def test_a_grain_that_the_card_knows_counts_from_the_first_weight(grain: int) -> None:
    """One weight that fits by its bytes and not by the steps that hold it; then one that does."""
    room = 5 * grain + grain // 2
    drift = Drift.at_first("async", grain=grain)
    (over,), (under,) = pieces_of([room - KIB]), pieces_of([5 * grain])
    assert drift.reserved_with(over.bytes) > room
    planned = replan([over], drift, room=room, ring=NO_RING)
    assert planned is None or not planned.stays[0]
    planned = replan([under], drift, room=room, ring=NO_RING)
    assert planned is not None
    assert planned.stays == (True,)
    assert Drift.at_first("native", grain=grain) == Drift.at_first("native")
