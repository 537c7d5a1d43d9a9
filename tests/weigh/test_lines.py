"""Lines over the size of a job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.weigh.lines import Line, Point, at_most, drawn, fit

_SIZES = st.tuples(st.integers(64, 2**24), st.integers(1, 200))


@given(
    st.floats(1e5, 1e8),
    st.floats(0, 1e3),
    st.floats(0, 1e3),
    st.lists(_SIZES, min_size=4, unique=True),
)
def test_a_line_is_found_again_and_is_never_below_a_point(
    fixed: float, area: float, samples: float, sizes: list[tuple[int, int]]
) -> None:
    """Whatever set of sizes it was seen at."""
    true = Line(fixed, area, samples)
    points = [Point(a, f, true.at(area=a, frames=f)) for a, f in sizes]
    found = fit(points)
    assert min(found.fixed, found.area, found.samples) >= 0
    for point in points:
        at = found.at(area=point.area, frames=point.frames)
        assert at >= point.bytes
        assert at <= point.bytes * 1.02 + 64


@given(
    st.lists(
        st.builds(Point, st.integers(64, 2**24), st.integers(1, 200), st.integers(1, 2**40)),
        min_size=1,
    )
)
def test_a_fit_is_never_below_what_was_seen_however_odd(points: list[Point]) -> None:
    """Memory that falls with size has no negative slope either."""
    line = fit(points)
    assert min(line.fixed, line.area, line.samples) >= 0
    assert all(line.at(area=p.area, frames=p.frames) >= p.bytes * 0.999999 for p in points)


@given(_SIZES, _SIZES, st.integers(1, 8), st.integers(1, 8))
def test_more_is_never_less(
    one: tuple[int, int], two: tuple[int, int], batch: int, more: int
) -> None:
    """In pixels, frames and batch, also where a second line begins."""
    lines = [Line(1e6, 3.0, 0.5), Line(5e6, 1.0, 0.7, frames=2)]
    low = at_most(lines, area=min(one[0], two[0]), frames=min(one[1], two[1]), batch=batch)
    high = at_most(lines, area=max(one[0], two[0]), frames=max(one[1], two[1]), batch=batch + more)
    assert low <= high


def test_a_line_needs_points() -> None:
    """None is an error, not a line through nothing."""
    with pytest.raises(ValueError, match="points"):
        fit([])


def test_clips_have_a_line_of_their_own() -> None:
    """A network that walks through time needs more from the second frame on."""
    points = [Point(256, 1, 1000), Point(1024, 1, 4000), Point(256, 5, 9000), Point(1024, 9, 36000)]
    lines = drawn(points)
    assert [line.frames for line in lines] == [1, 2]
    assert at_most(lines, area=1024, frames=1) == pytest.approx(4000, abs=2)
    assert at_most(lines, area=1024, frames=9) == pytest.approx(36000, rel=0.01)
    assert drawn(points[:2]) == lines[:1]
    assert drawn([]) == ()
