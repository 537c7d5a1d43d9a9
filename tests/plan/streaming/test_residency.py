"""What stays, and what is streamed through which ring."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.models import flux_units, gib
from tests.plan.strategies import units
from tightfit.plan.demand import Unit
from tightfit.plan.streaming.residency import MODES, Limits, Mode, Residency, least_option, settle
from tightfit.plan.streaming.ring import resident_option, streamed_options
from tightfit.units import MIB

LIMITS = st.sampled_from([Limits(), Limits(0.001, 1e9), Limits(0.05, 1e9), Limits(5.0, 1e9)])


def settled(
    units: tuple[Unit, ...],
    room: int,
    *,
    budget: int | None = None,
    mode: Mode = "auto",
    limits: Limits | None = None,
    slots: int = 2,
) -> Residency | None:
    """The residency of `units` in so much room."""
    return settle(
        resident_option(units),
        tuple(streamed_options(units, slots=slots)),
        room=room,
        budget=room if budget is None else budget,
        mode=mode,
        limits=limits,
    )


def must(residency: Residency | None) -> Residency:
    """It is there."""
    assert residency is not None
    return residency


@given(units(), st.integers(0, 200), st.sampled_from(MODES), LIMITS)
def test_what_is_settled_is_within_the_room_and_loses_nothing(
    units: tuple[Unit, ...], room: int, mode: Mode, limits: Limits
) -> None:
    """Resident and streamed together are all weights; each streamed piece has a slot."""
    residency = settled(units, room * MIB, mode=mode, limits=limits)
    least = least_option(resident_option(units), tuple(streamed_options(units)), mode=mode).least
    assert (residency is not None) == (least <= room * MIB)
    if residency is None:
        return
    assert residency.bytes <= room * MIB
    whole = sum(unit.bytes for unit in units)
    assert residency.resident_bytes + residency.streamed_bytes == whole
    assert len(residency.resident) + len(residency.streamed) == len(residency.pieces)
    if residency.ring.level in ("block", "leaf"):
        assert all(piece.slot <= residency.ring.slot_bytes for piece in residency.streamed)
    assert not any(piece.stays for piece in residency.streamed)


@given(units(), st.integers(0, 200), LIMITS)
def test_a_mode_that_may_stream_more_fits_wherever_one_that_may_not_does(
    units: tuple[Unit, ...], room: int, limits: Limits
) -> None:
    """``high`` fits in ``auto``, ``auto`` and ``low`` in one another, and both in ``none``."""
    fits = {
        mode: settled(units, room * MIB, mode=mode, limits=limits) is not None for mode in MODES
    }
    assert fits["high"] <= fits["auto"] == fits["low"] <= fits["none"]


@given(units(), st.integers(0, 200), st.integers(0, 60), st.sampled_from(MODES), LIMITS)
def test_more_room_never_turns_yes_into_no(
    units: tuple[Unit, ...], room: int, more: int, mode: Mode, limits: Limits
) -> None:
    """Passing is monotone in the room."""
    before = settled(units, room * MIB, mode=mode, limits=limits)
    after = settled(units, (room + more) * MIB, mode=mode, limits=limits)
    assert after is not None or before is None


def test_high_keeps_everything_and_none_streams_everything_that_can_be() -> None:
    """Whatever the room; what must stay stays in either."""
    stack = (Unit("a", 6 * MIB, stays="tied"), *(Unit(str(at), 6 * MIB) for at in range(5)))
    high = must(settled(stack, 64 * MIB, mode="high"))
    assert not high.streamed
    none = must(settled(stack, 64 * MIB, mode="none"))
    assert [piece.name for piece in none.resident] == ["a"]


def test_low_streams_what_costs_no_time_and_keeps_the_rest() -> None:
    """Copying is hidden behind compute up to ``C × W``; where that is unknown, all that fits."""
    stack = tuple(Unit(str(at), 10 * MIB) for at in range(20))
    limits = Limits(compute=1.0, link=100.0 * MIB)
    low = must(settled(stack, 400 * MIB, mode="low", limits=limits))
    assert low.streamed_bytes == 100 * MIB
    assert must(settled(stack, 400 * MIB, mode="low")).streamed == ()
    assert must(settled(stack, 400 * MIB, mode="auto", limits=limits)).streamed == ()


def test_low_keeps_no_more_than_auto_where_the_link_binds() -> None:
    """Then every resident byte saves time, and both fill the room."""
    stack = tuple(Unit(str(at), 10 * MIB) for at in range(20))
    limits = Limits(compute=0.01, link=100.0 * MIB)
    low = must(settled(stack, 110 * MIB, mode="low", limits=limits))
    assert low == must(settled(stack, 110 * MIB, mode="auto", limits=limits))


def test_blocks_move_whole_unless_leaves_save_time() -> None:
    """Fewer copies and events are worth 2 % of a step, and no more."""
    bound_by_compute = settled(flux_units(), gib(5.5), limits=Limits(1.0, 25e9))
    assert must(bound_by_compute).ring.level == "block"
    bound_by_link = settled(flux_units(), gib(5.5), limits=Limits(0.1, 25e9))
    assert must(bound_by_link).ring.level == "leaf"


def test_leaves_move_where_two_blocks_would_take_over_a_quarter_of_the_budget() -> None:
    """Also where compute binds, so that nothing is gained in time."""
    residency = must(settled(flux_units(), gib(4.5), budget=gib(5), limits=Limits(5.0, 25e9)))
    assert residency.ring.level == "leaf"
    assert 4 * residency.ring.bytes <= gib(5)


def test_rows_move_only_where_no_whole_leaf_fits_beside_its_conversion() -> None:
    """One fp8 weight of 10 MiB and its copy of 40: 50 is enough for a slot, 45 for slices."""
    stack = tuple(Unit(str(at), 10 * MIB, converted=40 * MIB) for at in range(4))
    assert must(settled(stack, 50 * MIB)).ring.level == "block"
    sliced = must(settled(stack, 45 * MIB))
    assert sliced.ring.level == "rows"
    assert sliced.conversion == 40 * MIB
    assert settled(stack, 41 * MIB) is None


@pytest.mark.parametrize("size", [4.5, 6, 8, 10, 12, 14, 16, 18, 20])
@pytest.mark.parametrize("compute", [0.1, 0.172, 0.3, 0.6])
def test_flux_is_planned_close_to_its_limit(size: float, compute: float) -> None:
    """Waits stay below 8 % of ``max(C, B/W)`` on a fast link, at every room."""
    limits = Limits(compute, 55e9)
    residency = must(settled(flux_units(), gib(size - 0.46), budget=gib(size), limits=limits))
    limit = limits.seconds(residency.moved_bytes, overlaps=True)
    took = residency.seconds(limits)
    assert limit is not None
    assert took is not None
    assert limit <= took <= 1.08 * limit
