"""How much of a card may be used."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tightfit.plan.room import room_left
from tightfit.units import MIB

SIZES = st.integers(0, 2**40)


def test_a02_a_limit_on_the_process_counts_and_the_context_is_not_part_of_it() -> None:
    """A limit of 32 MiB with 8 held leaves 24; a context comes off the card, not the limit."""
    assert room_left(budget=32 * MIB, total=64 * MIB, held=8 * MIB) == 24 * MIB
    assert room_left(budget=32 * MIB, total=64 * MIB, held=8 * MIB, context=10 * MIB) == 24 * MIB
    assert room_left(budget=64 * MIB, total=64 * MIB, held=8 * MIB, context=10 * MIB) == 46 * MIB


def test_a03_what_others_hold_is_not_ours() -> None:
    """A second client with 24 of 64 MiB leaves 40, and a reserve of 4 leaves 36."""
    assert room_left(budget=64 * MIB, total=64 * MIB, held=0, held_by_others=24 * MIB) == 40 * MIB
    assert (
        room_left(budget=64 * MIB, total=64 * MIB, held=0, held_by_others=24 * MIB, reserve=4 * MIB)
        == 36 * MIB
    )


def test_the_reserve_is_kept_on_the_card_and_does_not_shrink_a_small_budget() -> None:
    """A budget that leaves more than the reserve is not cut again."""
    assert room_left(budget=32 * MIB, total=64 * MIB, held=0, reserve=16 * MIB) == 32 * MIB
    assert room_left(budget=60 * MIB, total=64 * MIB, held=0, reserve=16 * MIB) == 48 * MIB


@given(SIZES, SIZES, SIZES, SIZES, SIZES, SIZES)
def test_room_is_never_negative_and_never_above_any_limit(
    budget: int, total: int, held: int, others: int, context: int, reserve: int
) -> None:
    """Whatever the figures."""
    room = room_left(
        budget=budget,
        total=total,
        held=held,
        held_by_others=others,
        context=context,
        reserve=reserve,
    )
    assert room >= 0
    if room:
        assert held + room <= budget
        assert held + room + others + context + reserve <= total


@given(SIZES, SIZES, SIZES, st.integers(0, 2**30))
def test_room_grows_with_the_budget(budget: int, total: int, held: int, more: int) -> None:
    """Passing is monotone in the budget, and so is room."""
    assert room_left(budget=budget + more, total=total, held=held) >= room_left(
        budget=budget, total=total, held=held
    )
