"""Group A, accounting: the planned figures of A05, A09 and A12."""

from __future__ import annotations

import pytest

from tightfit.plan.batch import MOST_AT_ONCE, batch_for
from tightfit.plan.demand import Demand, Unit, Way
from tightfit.plan.eviction import Tenant, evict
from tightfit.plan.figure import Figure
from tightfit.plan.plan import make
from tightfit.plan.supply import Host, Supply
from tightfit.units import GIB, MIB

DENOISER = Tenant("denoiser", 40 * MIB, last_used=1)


def test_a05_a_tiled_decode_evicts_nobody() -> None:
    """Model of 40 on 64, tiles need 5, the whole 60: what is reserved is what runs."""
    whole, tiles = (
        Way("whole", Figure(60 * MIB)),
        Way("tiles", Figure(5 * MIB), exact=False),
    )
    beside = Supply("virtual:64MiB", 64 * MIB, 64 * MIB, held=DENOISER.bytes)
    (stage,) = make([Demand("decode", (), ways=(whole, tiles))], beside).stages
    assert stage.way.name == "tiles"
    need = next(need.least for need in stage.ways if need.way == stage.way)
    assert need == 5 * MIB
    assert evict(need, beside.room, [DENOISER]).go == ()


def test_a05_an_exact_way_may_evict_and_says_what_it_frees() -> None:
    """The same model goes where the whole is what runs."""
    answer = evict(60 * MIB, 24 * MIB, [DENOISER])
    assert (answer.go, answer.freed) == (("denoiser",), 40 * MIB)


@pytest.mark.parametrize(
    ("rounding", "real", "pinned"), [("exact", 118, 118), ("power_of_two", 120, 68)]
)
def test_a09_pinned_memory_keeps_its_budget_as_it_really_is(
    rounding: str, real: int, pinned: int
) -> None:
    """33 MiB and 20 of 5 under 120: 133 do not fit exactly, and rounded up they take 224."""
    units = (Unit("large", 33 * MIB), *(Unit(str(at), 5 * MIB) for at in range(20)))
    host = Host(GIB, GIB, pin_limit=120 * MIB, rounding=rounding)
    supply = Supply("virtual:256MiB", 256 * MIB, 256 * MIB, host=host)
    plan = make([Demand("denoise", units, Figure(0))], supply, mode="none")
    assert plan.fits
    assert plan.host is not None
    assert plan.host.pinned_asked == 133 * MIB
    assert plan.host.pinned_real == real * MIB <= 120 * MIB
    assert plan.host.pinned == pinned * MIB
    assert plan.host.masters == (133 - pinned) * MIB
    assert list(plan.host.where.values()).count("staged") == (133 - pinned) // 5
    ledger = plan.as_dict()["host"]["ledger"]
    assert ledger["host_pinned_asked"]["bytes"] == 133 * MIB
    assert ledger["host_pinned_real"]["bytes"] == real * MIB
    assert "asked" in plan.explain()


def test_a12_a_huge_card_does_not_make_a_huge_batch() -> None:
    """64 latents of 8x8 on a card for all of them: as many at once as still help."""
    assert batch_for(64, fixed=MIB, each=MIB, room=80 * GIB) == MOST_AT_ONCE
    assert MOST_AT_ONCE <= 8
    assert batch_for(64, fixed=MIB, each=MIB, room=3 * MIB) == 2
