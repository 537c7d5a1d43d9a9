"""Which slots there are to choose from, and the pieces that pass through them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.plan.strategies import units
from tightfit.plan.demand import Unit
from tightfit.plan.streaming.pieces import pieces_of
from tightfit.plan.streaming.ring import SLICES, Ring, resident_option, streamed_options
from tightfit.units import MIB

FP8 = tuple(Unit(str(at), 10 * MIB, converted=40 * MIB) for at in range(6))


def test_two_slots_copy_ahead_and_one_does_not() -> None:
    """Nor do slices: what they are joined in is in use until the computation ends."""
    assert Ring("block", MIB, 2).overlaps
    assert Ring("leaf", MIB, 2).overlaps
    assert not Ring("block", MIB, 1).overlaps
    assert not Ring("rows", MIB, 2).overlaps
    assert Ring("block", MIB, 2).bytes == 2 * MIB


def test_a_smaller_slot_keeps_larger_pieces_resident() -> None:
    """One of 24 and ten of 6: slots of 6 are offered, with 24 staying."""
    stack = (Unit("big", 24 * MIB), *(Unit(str(at), 6 * MIB) for at in range(10)))
    offered = {(o.ring.slot_bytes // MIB, o.ring.slots): o.staying for o in streamed_options(stack)}
    assert offered == {(6, 2): 24 * MIB, (6, 1): 24 * MIB, (24, 2): 0, (24, 1): 0}


def test_leaves_are_offered_where_units_can_be_taken_apart() -> None:
    """Parts become pieces of their own; a unit whose parts are not known stays one piece."""
    parts = (Unit("a.x", 2 * MIB), Unit("a.y", 4 * MIB))
    block = (Unit("a", 6 * MIB, parts=parts), Unit("b", 6 * MIB, largest=3 * MIB))
    levels = {option.ring.level for option in streamed_options(block)}
    assert levels == {"block", "leaf"}
    pieces = pieces_of(block, "leaf", convert="card")
    assert [(p.name, p.bytes // MIB, p.slot // MIB) for p in pieces] == [
        ("a.x", 2, 2),
        ("a.y", 4, 4),
        ("b", 6, 3),
    ]


def test_slices_are_offered_only_where_something_is_converted() -> None:
    """A multiplication takes the whole weight, so without a conversion they would save nothing."""
    plain = tuple(Unit(str(at), 10 * MIB) for at in range(6))
    assert "rows" not in {option.ring.level for option in streamed_options(plain)}
    sliced = [option for option in streamed_options(FP8) if option.ring.level == "rows"]
    assert sliced
    assert {option.ring.slot_bytes for option in sliced} <= set(SLICES)
    assert all(option.conversion == 40 * MIB for option in sliced)


def test_q01_the_converted_copy_is_a_fixed_cost_also_of_resident_weights() -> None:
    """It is there at every size of the job: fixed, not slope."""
    assert resident_option(FP8).least == 100 * MIB
    assert all(option.conversion == 40 * MIB for option in streamed_options(FP8))


def test_q01_what_the_host_converts_arrives_wide_and_needs_no_second_copy() -> None:
    """With one slot, the slot is the scratch; with two, resident weights need their own."""
    offered = {o.ring.slots: o for o in streamed_options(FP8, convert="host")}
    assert (offered[1].ring.slot_bytes, offered[1].conversion) == (40 * MIB, 0)
    assert (offered[2].ring.bytes, offered[2].conversion) == (80 * MIB, 40 * MIB)
    assert offered[1].ratio == 4.0


def test_a_unit_that_must_stay_is_resident_in_every_choice() -> None:
    """And is counted so."""
    stack = (Unit("a", 6 * MIB, stays="used without being called"), Unit("b", 6 * MIB))
    for option in streamed_options(stack):
        assert option.stays(option.pieces[0])
        assert option.staying >= 6 * MIB


@given(units(), st.sampled_from(["block", "leaf"]), st.sampled_from(["card", "host"]))
def test_pieces_are_all_weights_and_all_time(units: tuple[Unit, ...], level, convert) -> None:
    """However they are cut, in the order they run in."""
    pieces = pieces_of(units, level, convert=convert)
    whole = sum(unit.bytes for unit in units)
    assert sum(piece.bytes for piece in pieces) == whole
    assert abs(sum(piece.time for piece in pieces) - (1 if whole else 0)) < 1e-9
    assert all(piece.moved >= piece.bytes for piece in pieces)
    tops = [piece.name.partition(".")[0] for piece in pieces]
    assert tops == sorted(tops, key=int)


@given(units())
def test_every_choice_adds_up(units: tuple[Unit, ...]) -> None:
    """What stays and what is free are all weights, and a slot holds each piece that is free."""
    whole = sum(unit.bytes for unit in units)
    for option in streamed_options(units):
        assert option.staying + option.free == whole
        free = [piece for piece in option.pieces if not option.stays(piece)]
        assert sum(piece.bytes for piece in free) == option.free
        if option.ring.level != "rows":
            assert all(piece.slot <= option.ring.slot_bytes for piece in free)
