"""Gauges: what a stage needs beside its weights."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tightfit.plan.size import Size
from tightfit.run.planning.gauge import NOTHING_KNOWN, NoGauge, TableGauge, Working, scaled
from tightfit.weigh.lines import Line
from tightfit.weigh.table import Needs, needs_of

SIZES = st.builds(
    Size, st.integers(8, 4096), st.integers(8, 4096), st.integers(1, 120), st.integers(1, 8)
)
ROWS = (
    ("flux.1-dev/transformer", "denoise"),
    ("wan2.1-t2v-14b/transformer", "denoise"),
    ("flux-vae", "decode"),
    ("wan2.1-vae", "encode"),
    ("t5-xxl", "encode text"),
)
ALLOCATORS = ("exact", "native", "async", "expandable")


def gauge(row: tuple[str, str]) -> TableGauge:
    """By the shipped table."""
    needs = needs_of(*row, "bfloat16")
    assert needs is not None
    return TableGauge(needs)


def figures(working: Working) -> tuple[int, ...]:
    """In the order in which none is above the next."""
    dry, allocated = working.dry, working.allocated
    assert dry is not None
    assert allocated is not None
    return dry, allocated, working.least or allocated, working.reserved or 2**60


@given(st.sampled_from(ROWS), SIZES, st.sampled_from(ALLOCATORS))
def test_what_holds_a_tensor_is_no_smaller_than_it(
    row: tuple[str, str], size: Size, allocator: str
) -> None:
    """Tensors, then scratch, then the least limit, then what is reserved without one."""
    told = gauge(row).at(size, allocator=allocator)
    assert list(figures(told)) == sorted(figures(told))
    assert told.source == "table"
    assert (told.least is None) == (told.reserved is None) == (allocator == "exact")


@given(st.sampled_from(ROWS), SIZES, SIZES, st.sampled_from(ALLOCATORS))
def test_a_larger_size_never_needs_less(
    row: tuple[str, str], size: Size, more: Size, allocator: str
) -> None:
    """In every figure."""
    large = Size(
        size.width + more.width - 8,
        size.height + more.height - 8,
        size.frames + more.frames - 1,
        size.batch + more.batch - 1,
    )
    low, high = (gauge(row).at(each, allocator=allocator) for each in (size, large))
    assert all(a <= b for a, b in zip(figures(low), figures(high), strict=True))
    assert (low.flops or 0) <= (high.flops or 0)


@given(st.sampled_from(ROWS), SIZES, SIZES, st.floats(0.5, 2.0))
def test_scaled_lines_say_what_was_seen_where_it_was_seen(
    row: tuple[str, str], size: Size, other: Size, factor: float
) -> None:
    """And elsewhere they stay in proportion, in order."""
    told, here = (gauge(row).at(each, allocator="native") for each in (other, size))
    dry, allocated, least, reserved = figures(here)
    seen = Working(
        dry=int(dry * factor),
        allocated=int(allocated * factor),
        least=int(least * factor),
        reserved=int(reserved * factor),
        flops=(here.flops or 0) * factor,
    )
    assert figures(scaled(here, by=here, to=seen)) == figures(seen)
    elsewhere = scaled(told, by=here, to=seen)
    assert list(figures(elsewhere)) == sorted(figures(elsewhere))
    assert elsewhere.source == seen.source
    wide = Size(other.width * 2, other.height, other.frames, other.batch)
    larger = scaled(gauge(row).at(wide, allocator="native"), by=here, to=seen)
    assert all(a <= b for a, b in zip(figures(elsewhere), figures(larger), strict=True))


def test_lines_that_cross_are_put_in_order() -> None:
    """Each was drawn on its own, so that scratch could come out below nothing."""
    needs = Needs(
        dry=(Line(100, 0, 0),),
        allocated=(Line(90, 0, 0),),
        reserved={"native": (Line(70, 0, 0),)},
        least={"native": (Line(80, 0, 0),)},
        flops=(1.0, 0.0, 0.0, 0.0),
    )
    told = TableGauge(needs, "predicted").at(Size(8, 8), allocator="native")
    assert (told.dry, told.allocated, told.least, told.reserved) == (100, 100, 100, 100)
    assert told.source == "predicted"


def test_what_is_not_known_stays_unknown() -> None:
    """Nothing is made of it."""
    assert NoGauge().at(Size(8, 8), allocator="native") == NOTHING_KNOWN
    assert scaled(NOTHING_KNOWN, by=Working(1, 1), to=Working(2, 2)) == NOTHING_KNOWN
    assert scaled(Working(1, 1), by=NOTHING_KNOWN, to=Working(2, 2)) == Working(1, 1)
