"""How long a call takes, and what binds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tightfit.plan.demand import Demand
from tightfit.plan.figure import UNKNOWN_RATE, Rate
from tightfit.plan.pace import Copied, pace_of
from tightfit.plan.supply import Supply
from tightfit.units import GIB

SUPPLY = Supply(
    "v",
    GIB,
    GIB,
    link=Rate(25e9, "measured"),
    staged=Rate(10e9, "measured"),
    disk=Rate(2e9, "measured"),
    compute=Rate(100e12, "table"),
)
STEP = Demand("denoise", (), flops=50e12)


def test_a_step_takes_the_longer_of_computing_and_copying() -> None:
    """``max(C, B/W)``, and which of the two it is."""
    slow = pace_of(STEP, SUPPLY, Copied(pinned=25_000_000_000), overlaps=True)
    assert (slow.binds, slow.seconds) == ("link", 1.0)
    fast = pace_of(STEP, SUPPLY, Copied(pinned=5_000_000_000), overlaps=True)
    assert (fast.binds, fast.seconds) == ("compute", 0.5)
    assert fast.source == "table"


def test_without_copying_ahead_it_takes_both() -> None:
    """One after the other."""
    pace = pace_of(STEP, SUPPLY, Copied(pinned=5_000_000_000), overlaps=False)
    assert pace.seconds == pytest.approx(0.7)


def test_a_measured_step_counts_before_operations_and_tables() -> None:
    """And then the pace is measured."""
    pace = pace_of(replace(STEP, seconds=0.25), SUPPLY, Copied(), overlaps=True)
    assert (pace.seconds, pace.source, pace.binds) == (0.25, "measured", "compute")


def test_memory_that_is_not_pinned_and_files_are_copied_from_more_slowly() -> None:
    """Each at its own rate, one after the other on one link."""
    copied = Copied(pinned=25_000_000_000, staged=10_000_000_000, mapped=2_000_000_000)
    pace = pace_of(STEP, SUPPLY, copied, overlaps=True)
    assert pace.copy_seconds == pytest.approx(3.0)
    assert pace.moved_bytes == copied.bytes


def test_what_is_unknown_is_not_a_time_of_zero() -> None:
    """With one of the two the step takes at least that; with neither, nothing is said."""
    no_compute = replace(SUPPLY, compute=UNKNOWN_RATE)
    pace = pace_of(STEP, no_compute, Copied(pinned=25_000_000_000), overlaps=True)
    assert (pace.seconds, pace.at_least, pace.binds) == (1.0, True, None)
    nothing = pace_of(STEP, no_compute, Copied(), overlaps=True)
    assert nothing.seconds is None
    no_link = replace(SUPPLY, link=UNKNOWN_RATE)
    assert pace_of(STEP, no_link, Copied(pinned=1), overlaps=True).copy_seconds is None
