"""Levels of detail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tightfit.report.page.curves import area, curve, outline

SAMPLES = st.lists(
    st.tuples(st.floats(0, 1e4, allow_nan=False), st.integers(0, 2**40)), min_size=1, max_size=200
)


@given(SAMPLES, st.integers(1, 50), st.integers(1, 40))
def test_no_level_of_detail_loses_the_least_or_the_most(
    samples: list[tuple[float, int]], most: int, columns: int
) -> None:
    """Of all points, and of all columns that are drawn."""
    found = curve(samples, most=most)
    assert found is not None
    assert len(found.times) <= most
    low, high = min(size for _, size in samples), max(size for _, size in samples)
    assert (min(found.low), found.peak) == (low, high)
    first, last = min(t for t, _ in samples), max(t for t, _ in samples)
    drawn = [each for each in found.columns(first, last + 1e-3, columns) if each is not None]
    assert (min(each[0] for each in drawn), max(each[1] for each in drawn)) == (low, high)


@given(SAMPLES, st.floats(0, 1e4, allow_nan=False))
def test_a_figure_holds_until_the_next_sample(
    samples: list[tuple[float, int]], time: float
) -> None:
    """Between samples, the last one is what there is."""
    found = curve(samples)
    assert found is not None
    seen = found.between(time, time)
    last = max((t for t, _ in samples if t <= time), default=None)
    then = [size for t, size in samples if t == last]
    if last == time:
        assert seen == (min(then), max(then))
    elif then:
        assert seen is not None
        assert seen[0] == seen[1]
        assert seen[0] in then
    else:
        assert seen is None


def test_of_no_samples_there_is_no_curve() -> None:
    """Not an empty one."""
    assert curve([]) is None


def test_an_outline_ends_where_the_canvas_ends() -> None:
    """Steps, and nothing where nothing is known."""
    assert outline([None, (5, 10), (5, 10), (0, 5)], 10) == "M250.0 0.0H750.0V500.0H1000"
    assert outline([None, None], 10) == ""
    assert area("M250.0 0.0H1000") == "M250.0 0.0H1000V1000H250.0Z"
