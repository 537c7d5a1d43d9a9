"""Group W, weight residency: the planned figures. What must run runs where streaming is built."""

from __future__ import annotations

import pytest

from tightfit.plan.demand import Demand, Unit
from tightfit.plan.figure import Figure
from tightfit.plan.plan import make
from tightfit.plan.stage import StagePlan
from tightfit.plan.supply import Supply
from tightfit.units import MIB

CARD = Supply("virtual:64MiB", 64 * MIB, 64 * MIB)
STACK = (*(Unit(str(at), 6 * MIB) for at in range(10)), Unit("large", 24 * MIB))


def planned(units: tuple[Unit, ...], activations: int, *, slots: int = 2) -> StagePlan:
    """On a card of 64 MiB."""
    demand = Demand("denoise", units, Figure(activations * MIB))
    plan = make([demand], CARD, slots=slots)
    assert plan.fits
    plan.check()
    return plan.stages[0]


@pytest.mark.parametrize(("streams", "resident"), [(1, 54), (2, 48)])
def test_w01_room_is_kept_for_the_copies_of_every_stream(streams: int, resident: int) -> None:
    """84 MiB on 64 with activations of 4: a plan without the copies would keep 60 and need 70."""
    stage = planned(STACK, 4, slots=streams)
    assert stage.residency is not None
    assert stage.residency.resident_bytes == resident * MIB
    assert stage.residency.ring.bytes == streams * 6 * MIB
    assert stage.peak_reserved is not None
    assert stage.peak_reserved <= 64 * MIB
    assert "large" in stage.resident


def test_w12_what_fits_is_wholly_resident() -> None:
    """A model of 40 on 64 with a measured need of 6: nothing is streamed, and no flat reserve."""
    stage = planned(tuple(Unit(str(at), 4 * MIB) for at in range(10)), 6)
    assert stage.streamed == ()
    assert stage.pace is not None
    assert stage.pace.moved_bytes == 0
    assert stage.ledger.lines["ring"].bytes == 0
    assert stage.peak_reserved == 46 * MIB


def test_w12_is_resident_to_the_last_byte_of_the_card() -> None:
    """Up to the very need: 40 on 46, and not on one byte less."""
    units = tuple(Unit(str(at), 4 * MIB) for at in range(10))
    demand = Demand("denoise", units, Figure(6 * MIB))
    exact = Supply("v", 46 * MIB, 46 * MIB)
    assert not make([demand], exact).stages[0].streamed
    less = Supply("v", 46 * MIB - 1, 46 * MIB - 1)
    assert make([demand], less).stages[0].streamed
