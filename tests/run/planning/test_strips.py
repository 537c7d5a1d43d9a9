"""Strips as a way of a stage: what a plan says of them is what a job will do."""

from __future__ import annotations

import pytest

from tests.cases.common import virtual
from tightfit.adapters import find_vae, load_vae
from tightfit.api import make_plan
from tightfit.plan.plan import Plan
from tightfit.run.job import Job, Request
from tightfit.units import MIB

MINI = "mini:wan2.1-vae"


def planned(size: int, *, tile: str = "auto") -> Plan:
    """A decode and an encode of 9 frames of 256x192 on a card of so many bytes."""
    return make_plan(MINI, width=256, height=192, frames=9, card=f"virtual:{size}B", tile=tile)


def test_where_the_whole_does_not_fit_a_plan_says_strips_and_that_they_are_exact() -> None:
    """Before tiles, with what they keep on the host in its ledger."""
    whole = next(n.least for n in planned(2**40).stage("decode").ways if n.way.name == "whole")
    plan = planned(whole * 6 // 10)
    stage = plan.stage("decode")
    assert stage.fits
    assert stage.way.name == "strips"
    assert stage.way.exact
    assert stage.ledger.ours <= whole * 6 // 10
    assert plan.host is not None
    assert plan.host.activations.bytes is not None
    names = [need.way.name for need in stage.ways]
    assert names.index("whole") < names.index("strips") < len(names) - 1


def test_where_the_whole_fits_strips_are_not_worked_out() -> None:
    """It takes a moment, and nobody would run them."""
    assert "strips" not in [n.way.name for n in planned(2**40).stage("decode").ways]


def test_where_a_size_of_tiles_is_asked_for_there_are_no_strips() -> None:
    """As in a job."""
    names = [n.way.name for n in planned(16 * MIB, tile="64").stage("decode").ways]
    assert "strips" not in names


@pytest.mark.slow
def test_the_plan_takes_the_rung_that_the_job_takes() -> None:
    """A job on such a card runs in strips too, and stays within the plan's card."""
    torch = pytest.importorskip("torch")
    whole = next(n.least for n in planned(2**40).stage("decode").ways if n.way.name == "whole")
    size = whole * 6 // 10
    vae, card = load_vae(find_vae(MINI)), virtual(size)
    outcome = Job(vae, "decode", card, Request(size)).run(torch.rand(1, 16, 3, 24, 32))
    assert outcome.attempt.rung == planned(size).stage("decode").way.name == "strips"
