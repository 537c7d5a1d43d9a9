"""What fits still fits with a smaller job, or with more to do it in; through the whole chain."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.api.model_files import model_file
from tightfit.api.planning.planning import ask
from tightfit.api.planning.question import Question
from tightfit.plan.budget import Budget
from tightfit.plan.plan import Plan
from tightfit.plan.size import Size
from tightfit.plan.streaming.residency import MODES
from tightfit.units import GIB, KIB, MIB

DTYPES = {"flux2": "F8_E4M3"}
PICTURES = ("flux", "flux2")
CARDS = (
    "virtual:4TiB",
    "virtual:4TiB,allocator=native",
    "virtual:4TiB,allocator=async",
    "virtual:4TiB,allocator=expandable,context=400MiB,others=1GiB",
)
NAMES = st.sampled_from(("flux", "flux2", "wan1.3", "ltx", "flux-vae", "wan-vae", "t5"))
SIZES = st.builds(
    Size, st.integers(16, 3000), st.integers(16, 3000), st.integers(1, 130), st.integers(1, 6)
)
MORE = st.tuples(st.integers(0, 600), st.integers(0, 600), st.integers(0, 40), st.integers(0, 3))
BYTES = st.one_of(st.integers(0, 64 * KIB), st.integers(0, 64 * MIB), st.integers(0, 8 * GIB))


@cache
def question(name: str, card: str) -> Question:
    """Asked once; the host is as large as it takes."""
    with tempfile.TemporaryDirectory() as folder:
        path = model_file(Path(folder), name, DTYPES.get(name, "BF16"))
        return replace(ask(path, card=card), host=None)


def planned(
    name: str, card: str, mode: str, size: Size, budget: int, reserve: int, total: int
) -> Plan:
    """With a budget and a reserve on a card of some size."""
    frames = 1 if name in PICTURES else size.frames
    asked = question(name, card).sized(replace(size, frames=frames))
    paper = replace(asked.card, total=total)
    amount = Budget(min(budget, total), min(reserve, total - 1))
    return replace(asked, card=paper, amount=amount, mode=mode).plan()  # type: ignore[arg-type]


def least(name: str, card: str, mode: str, size: Size) -> int:
    """The fewest bytes that the job takes on a card without end."""
    plan = planned(name, card, mode, size, 2**42, 0, 2**42)
    return max(min(way.least for way in stage.ways) for stage in plan.stages)


@given(NAMES, st.sampled_from(CARDS), st.sampled_from(MODES), SIZES, MORE, BYTES)
def test_more_pixels_frames_or_items_never_turn_no_into_yes(
    name: str, card: str, mode: str, size: Size, more: tuple[int, int, int, int], spare: int
) -> None:
    """At budgets around the point where the smaller job begins to fit."""
    width, height, frames, batch = more
    larger = Size(
        size.width + width, size.height + height, size.frames + frames, size.batch + batch
    )
    edge = least(name, card, mode, size)
    assert edge <= least(name, card, mode, larger)
    for budget in (max(1, edge - 1), edge, edge + spare):
        small, large = (
            planned(name, card, mode, each, budget, 0, 2**42).fits for each in (size, larger)
        )
        assert small == (budget >= edge)
        assert small or not large


@given(NAMES, st.sampled_from(CARDS), st.sampled_from(MODES), SIZES, BYTES, BYTES, BYTES, BYTES)
def test_less_budget_card_or_more_reserve_never_turn_no_into_yes(
    name: str,
    card: str,
    mode: str,
    size: Size,
    spare: int,
    more_budget: int,
    more_reserve: int,
    more_card: int,
) -> None:
    """Around the point where the job begins to fit."""
    paper = question(name, card).card
    edge = least(name, card, mode, size)
    budget = edge + spare
    total = budget + paper.context + (paper.held_by_others or 0)
    base = planned(name, card, mode, size, budget, spare, total)
    assert base.fits  # the reserve is what the budget has above the need
    assert planned(name, card, mode, size, budget + more_budget, spare, total).fits
    assert planned(name, card, mode, size, budget, spare, total + more_card).fits
    kept = planned(name, card, mode, size, budget, spare + more_reserve, total)
    assert kept.fits == (more_reserve == 0)
    assert not planned(name, card, mode, size, edge - 1, 0, total + more_card).fits


@given(NAMES, st.sampled_from(CARDS), SIZES, BYTES)
def test_what_fits_resident_fits_planned_and_what_fits_planned_fits_streamed(
    name: str, card: str, size: Size, spare: int
) -> None:
    """Modes are in order, and every plan that fits has its books in order."""
    budget = least(name, card, "none", size) + spare
    plans = {mode: planned(name, card, mode, size, budget, 0, 2**42) for mode in MODES}
    assert plans["none"].fits
    assert plans["auto"].fits or not plans["high"].fits
    assert plans["auto"].fits == plans["low"].fits
    for plan in plans.values():
        plan.check()
        for stage in plan.stages:
            assert not stage.fits or stage.ledger.fits
