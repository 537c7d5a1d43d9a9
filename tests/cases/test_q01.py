"""Q01, fp8 weights and a wider input: the planned figures.

Six linears of 2560 to 4096, fed the same input: each 10 MiB as fp8 and 40 MiB as fp32, on 64 MiB.
"""

from __future__ import annotations

import pytest

from tightfit.plan.demand import Demand, Unit
from tightfit.plan.figure import Figure, Rate
from tightfit.plan.plan import Plan, make
from tightfit.plan.streaming.pieces import Convert
from tightfit.plan.supply import Supply
from tightfit.units import MIB

LINEARS = tuple(Unit(str(at), 2560 * 4096, converted=4 * 2560 * 4096) for at in range(6))
INPUT = 8 * 2560 * 4
OUTPUTS = 6 * 8 * 4096 * 4
FLOPS = 6 * 2 * 8 * 2560 * 4096


def planned(*, convert: Convert = "card", timed: bool = False, budget: int = 64) -> Plan:
    """The six linears, with or without a pace."""
    demand = Demand(
        "denoise", LINEARS, Figure(OUTPUTS), inputs=INPUT, flops=FLOPS if timed else None
    )
    supply = Supply(
        "virtual:64MiB",
        budget * MIB,
        budget * MIB,
        link=Rate(10e9 if timed else None),
        compute=Rate(1e12 if timed else None),
    )
    return make([demand], supply, convert=convert)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize(("convert", "resident"), [("card", 1), ("host", 2)])
def test_q01_resident_staged_and_converted_are_within_the_card(
    convert: Convert, resident: int, timed: bool
) -> None:
    """1 layer is resident if fp8 is copied first, 2 if the host converts."""
    plan = planned(convert=convert, timed=timed)
    assert plan.fits
    plan.check()
    (stage,) = plan.stages
    assert len(stage.resident) == resident
    assert stage.peak_reserved is not None
    assert stage.peak_reserved <= 64 * MIB


def test_q01_prefetch_switches_itself_off_where_it_does_not_fit() -> None:
    """A second slot would cost the layer that stays."""
    (stage,) = planned().stages
    assert stage.residency is not None
    assert stage.residency.ring.slots == 1
    assert stage.pace is not None
    assert not stage.pace.overlaps
    (wide,) = planned(budget=90).stages
    assert wide.residency is not None
    assert wide.residency.ring.slots == 2


def test_q01_the_report_has_a_line_for_the_converted_copy() -> None:
    """In the ledger, and in the explanation."""
    plan = planned()
    assert plan.as_dict()["stages"][0]["ledger"]["conversion"] == {
        "bytes": 40 * MIB,
        "source": "predicted",
    }
    assert "conversion 40.0 MiB predicted" in " ".join(plan.explain().split())


def test_q01_a_plan_without_the_copy_would_not_hold() -> None:
    """Below stored slot and copy nothing fits, however many layers are streamed."""
    assert planned(budget=52).fits
    assert not planned(budget=41).fits
