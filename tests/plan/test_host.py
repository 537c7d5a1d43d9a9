"""Host memory: masters, what is pinned and what that really takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.plan.figure import NOTHING, Figure
from tightfit.plan.host import HostPlan, Streamed, plan_host, rounded
from tightfit.plan.supply import Host
from tightfit.units import MIB


def planned(
    host: Host,
    sizes: list[int],
    *,
    mapped: bool = False,
    resident: int = 0,
    strips: Figure = NOTHING,
) -> HostPlan:
    """For one model that streams pieces of these MiB, and has so many that stay."""
    pieces = [Streamed("m", str(at), size * MIB, 1, mapped) for at, size in enumerate(sizes)]
    whole = (sum(sizes) + resident) * MIB
    return plan_host(host, {"m": (whole, mapped)}, pieces, strips=strips)


@pytest.mark.parametrize(
    ("size", "takes"), [(0, 0), (1, 1), (33 * MIB, 64 * MIB), (5 * MIB, 8 * MIB), (64, 64)]
)
def test_a_pinned_buffer_may_be_rounded_to_a_power_of_two(size: int, takes: int) -> None:
    """As the pinned allocator of PyTorch does; a mapping of our own is exact."""
    assert rounded(size, "power_of_two") == takes
    assert rounded(size, "exact") == size


def test_masters_in_memory_are_pinned_where_they_are_streamed_from() -> None:
    """The pinned buffer is the master, so nothing is there twice."""
    plan = planned(Host(256 * MIB, 200 * MIB), [10, 10, 10], resident=20)
    assert plan.pinned_asked == plan.pinned == plan.pinned_real == 30 * MIB
    assert plan.masters == 20 * MIB
    assert plan.mapped == 0
    assert plan.taken == 50 * MIB


def test_weights_that_do_not_fit_stay_in_their_file_where_they_can() -> None:
    """What is streamed is pinned as far as memory goes; the rest is read from the file."""
    plan = planned(Host(256 * MIB, 25 * MIB), [10, 10, 10], resident=20, mapped=True)
    assert plan.fits
    assert plan.pinned == 20 * MIB
    assert plan.mapped == 30 * MIB
    assert sorted(plan.where.values()) == ["mapped", "pinned", "pinned"]


def test_weights_that_have_no_file_are_refused_where_they_do_not_fit() -> None:
    """Said beforehand, with what they need."""
    plan = planned(Host(256 * MIB, 25 * MIB), [10, 10, 10], resident=20)
    assert not plan.fits
    assert plan.needs == 50 * MIB


def test_what_strips_keep_comes_first() -> None:
    """Their activations leave less to pin, and may be what does not fit."""
    kept = planned(Host(256 * MIB, 60 * MIB), [10] * 4, mapped=True, strips=Figure(45 * MIB))
    assert kept.fits
    assert kept.pinned == 10 * MIB
    over = planned(Host(256 * MIB, 60 * MIB), [10] * 4, mapped=True, strips=Figure(61 * MIB))
    assert not over.fits


def test_what_is_copied_most_often_is_pinned_first() -> None:
    """A text encoder is copied once, a denoiser at every step."""
    once = Streamed("encoder", "a", 10 * MIB, 1)
    often = Streamed("denoiser", "b", 10 * MIB, 20)
    plan = plan_host(
        Host(256 * MIB, 200 * MIB, pin_limit=10 * MIB),
        {"encoder": (10 * MIB, False), "denoiser": (10 * MIB, False)},
        [once, often],
        strips=NOTHING,
    )
    assert plan.where == {("denoiser", "b"): "pinned", ("encoder", "a"): "staged"}


@given(
    st.lists(st.integers(0, 40), max_size=12),
    st.integers(0, 300),
    st.integers(0, 300),
    st.booleans(),
    st.sampled_from(["exact", "power_of_two"]),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_pins_keep_their_limit_and_every_weight_is_somewhere(
    sizes: list[int],
    available: int,
    limit: int,
    mapped: bool,
    rounding: str,
    resident: int,
    strips: int,
) -> None:
    """In memory, pinned or in its file, once; and no more is taken than there is."""
    host = Host(512 * MIB, available * MIB, pin_limit=limit * MIB, rounding=rounding)
    figure = Figure(strips * MIB)
    plan = planned(host, sizes, mapped=mapped, resident=resident, strips=figure)
    assert plan.masters + plan.pinned + plan.mapped == (sum(sizes) + resident) * MIB
    assert plan.pinned <= plan.pinned_real <= limit * MIB
    assert plan.pinned_asked == sum(sizes) * MIB
    assert set(plan.where) == {("m", str(at)) for at in range(len(sizes))}
    bound = strips + (0 if mapped else sum(sizes) + resident)
    assert plan.fits == (bound <= available)
    if not mapped:
        assert plan.mapped == 0
