"""Plans that count with a second card, from which weights are copied faster than from the host."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.models import flux_denoise
from tightfit.plan.figure import Figure, Rate
from tightfit.plan.host import Streamed, plan_host
from tightfit.plan.pace import Copied
from tightfit.plan.plan import Plan, make
from tightfit.plan.streaming.residency import Limits
from tightfit.plan.supply import Annexe, Host, Supply
from tightfit.units import GIB

LINK, PEER = 25e9, 200e9


def supply(room: int, *, host: bool = True, peer: float | None = PEER) -> Supply:
    """A card of 8 GiB, and so much room on another."""
    return Supply(
        "small",
        8 * GIB,
        8 * GIB,
        link=Rate(LINK, "measured"),
        staged=Rate(5e9, "measured"),
        disk=Rate(1e9, "measured"),
        compute=Rate(100e12, "table"),
        host=Host(64 * GIB, 60 * GIB) if host else None,
        annexe=Annexe("other", 24 * GIB, 20 * GIB, room, rate=Rate(peer, "measured")),
    )


def planned(offered: Supply) -> Plan:
    """Of FLUX.1's denoiser, which is three times as large."""
    plan = make([flux_denoise()], offered)
    plan.check()
    assert plan.fits
    return plan


@pytest.mark.parametrize("host", [True, False])
def test_what_lies_there_is_as_much_as_streams_and_as_there_is_room_for(host: bool) -> None:
    """The rest comes from the host, and the copies take the sum of both."""
    for room in (0, 4 * GIB, 64 * GIB):
        plan = planned(supply(room, host=host))
        stage = plan.stages[0]
        assert stage.residency is not None
        assert stage.pace is not None
        moved, (parked,) = stage.residency.moved_bytes, plan.parked
        assert parked <= min(room, moved)
        assert moved - parked <= max(0, moved - room) + max(p.bytes for p in stage.residency.pieces)
        seconds = parked / PEER + (moved - parked) / LINK
        assert stage.pace.copy_seconds == pytest.approx(seconds)
        assert plan.as_dict()["annexe"]["ledger"]["weights_parked"]["bytes"] == parked
        assert "On other: " in plan.explain()
        assert plan.explain().count("\n") < 40


def test_more_room_there_is_never_slower() -> None:
    """And with enough of it, what bound the link is bound by compute."""
    found = [planned(supply(room * GIB)).stages[0].pace for room in range(0, 24, 2)]
    seconds = [pace.seconds for pace in found if pace is not None and pace.seconds is not None]
    assert len(seconds) == len(found)
    assert all(later <= earlier * 1.001 for earlier, later in pairwise(seconds))
    assert seconds[-1] < seconds[0] / 2


def test_a_rate_that_nobody_knows_is_said() -> None:
    """It is planned all the same, and the time is unknown."""
    plan = planned(supply(64 * GIB, peer=None))
    assert plan.parked[0] > 0
    assert plan.stages[0].pace is not None
    assert plan.stages[0].pace.copy_seconds is None
    assert any("copy time" in each for each in plan.not_predicted)


def test_a_plan_without_a_second_card_has_no_books_of_it() -> None:
    """Null, and not a word."""
    plan = planned(replace(supply(0), annexe=None))
    assert plan.as_dict()["annexe"] is None
    assert "On other" not in plan.explain()


@given(
    st.floats(0, 10),
    st.floats(1, 1000),
    st.floats(1, 1000),
    st.integers(0, 1000),
    st.floats(0, 5000),
)
def test_hidden_bytes_are_those_whose_copies_take_as_long_as_compute(
    compute: float, link: float, peer: float, parked: int, moved: float
) -> None:
    """Whatever lies where; copies are as fast as one of the two ways, or between them."""
    limits = Limits(compute, link, peer=peer, parked=parked)
    hidden, copying = limits.hidden, limits.copying(moved)
    assert hidden is not None
    assert copying is not None
    assert limits.copying(hidden) == pytest.approx(compute, rel=1e-6, abs=1e-6)
    slow, fast = min(link, peer), max(link, peer)
    assert moved / fast - 1e-9 <= copying <= moved / slow + 1e-9
    seconds = limits.seconds(moved, overlaps=True)
    assert seconds == max(compute, copying)


def test_what_lies_there_is_neither_pinned_nor_read_into_memory() -> None:
    """Pieces of a file stay in it; those that lie in memory stay there as they are."""
    host = Host(8 * GIB, 8 * GIB)
    for mapped in (True, False):
        pieces = [Streamed("m", str(at), GIB, 1, mapped) for at in range(4)]
        plan = plan_host(host, {"m": (6 * GIB, mapped)}, pieces, strips=Figure(0), annexe=3 * GIB)
        assert sorted(plan.where.values()) == ["parked"] * 3 + ["pinned"]
        assert plan.pinned == plan.pinned_asked == GIB
        assert plan.taken == (3 if mapped else 6) * GIB
        assert plan.fits
    assert Copied(parked=3, pinned=4).bytes == 7
