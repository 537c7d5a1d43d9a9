"""Cutting an axis into tiles, and weighing them where they overlap."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.plan.tiles import Axis, Edge, Scale, Span, blend_weights, cut


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, int, int]:
    """A length, a tile, and a legal overlap."""
    tile = draw(st.integers(1, 80))
    return draw(st.integers(1, 400)), tile, draw(st.integers(0, tile - 1))


@given(cuts())
def test_tiles_cover_the_axis_and_overlap_as_asked(case: tuple[int, int, int]) -> None:
    """From 0 to the end, no gap, each start after the last, at least the overlap in common."""
    length, tile, overlap = case
    spans = cut(length, tile, overlap)
    assert (spans[0].start, spans[-1].stop) == (0, length)
    for one, two in pairwise(spans):
        assert one.start < two.start
        assert one.stop - two.start >= overlap


@given(cuts())
def test_no_tile_is_a_sliver(case: tuple[int, int, int]) -> None:
    """All tiles are equally long: the tile, or the whole axis where that is shorter."""
    length, tile, overlap = case
    assert {len(span) for span in cut(length, tile, overlap)} == {min(tile, length)}


@given(cuts())
def test_there_are_no_more_tiles_than_needed(case: tuple[int, int, int]) -> None:
    """One tile fewer could not cover the axis with this overlap."""
    length, tile, overlap = case
    count = len(cut(length, tile, overlap))
    assert count == 1 or (count - 1) * (tile - overlap) + overlap < length


edges = st.builds(Edge, st.integers(0, 60), st.integers(0, 60))


@given(cuts(), st.one_of(st.none(), edges), st.booleans())
def test_weights_of_each_unit_add_up_to_one(
    case: tuple[int, int, int], edge: Edge | None, blend: bool
) -> None:
    """Whatever the length, the overlap and what cuts spoil; and no weight is negative."""
    length, tile, overlap = case
    spans = cut(length, tile, overlap)
    totals = [0.0] * length
    weighed = blend_weights(spans, length, edge=edge, blend=blend)
    for span, weights in zip(spans, weighed, strict=True):
        assert len(weights) == len(span)
        assert min(weights) >= 0
        for at, weight in enumerate(weights, start=span.start):
            totals[at] += weight
    assert totals == pytest.approx([1.0] * length, abs=1e-9)


@given(cuts(), st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_what_a_cut_spoils_does_not_count(
    case: tuple[int, int, int], head: int, tail: int, blend: bool
) -> None:
    """Where the overlap has room for both: a tile that is right beyond them is exact."""
    length, tile, overlap = case
    if overlap < head + tail:
        return
    spans = cut(length, tile, overlap)
    weighed = blend_weights(spans, length, edge=Edge(head, tail), blend=blend)
    for span, weights in zip(spans, weighed, strict=True):
        for at, weight in enumerate(weights):
            if at < head and span.start > 0:
                assert weight == 0
            if len(span) - 1 - at < tail and span.stop < length:
                assert weight == 0
            assert blend or weight in (0, 1)


@given(st.integers(1, 40), st.integers(0, 90), st.integers(0, 90), st.integers(-60, 0))
def test_an_overlap_for_an_edge_is_the_least_that_holds_it(
    ratio: int, head: int, tail: int, extra: int
) -> None:
    """In units, whatever each stands for; one unit fewer would not do."""
    scale = Scale(ratio, extra)
    units = Edge(head, tail).overlap(scale)
    assert scale.length(units) >= head + tail
    assert units == 0 or scale.length(units - 1) < head + tail


@given(cuts())
def test_without_a_known_edge_a_quarter_of_the_overlap_is_left_out(
    case: tuple[int, int, int],
) -> None:
    """The outer quarter of an overlap counts for nothing, the next unit for something."""
    length, tile, overlap = case
    spans = cut(length, tile, overlap)
    quarter = (spans[0].stop - spans[1].start) // 4 if len(spans) == 2 else None
    assert blend_weights(spans, length) == blend_weights(
        spans, length, edge=None if quarter is None else Edge(quarter, quarter)
    )


def test_a_blend_rises_in_a_line() -> None:
    """Two tiles of 8 with 4 in common, nothing spoilt: 1/8, 3/8, 5/8, 7/8."""
    one, two = blend_weights(cut(12, 8, 4), 12, edge=Edge(0, 0))
    assert two[:4] == pytest.approx([0.125, 0.375, 0.625, 0.875])
    assert one[4:] == pytest.approx([0.875, 0.625, 0.375, 0.125])


def test_without_a_blend_the_later_tile_takes_over_after_its_head() -> None:
    """Two tiles of 8 with 4 in common: three are the warm-up of the second."""
    one, two = blend_weights(cut(12, 8, 4), 12, edge=Edge(3, 0), blend=False)
    assert (one, two) == ([1.0] * 7 + [0.0], [0.0] * 3 + [1.0] * 5)


def test_t02_a_plain_step_would_leave_a_sliver_and_ours_does_not() -> None:
    """Length 49, tile 48, overlap 16: stepping by 32 ends in 17 units of which 16 are done."""
    assert cut(49, 48, 16) == (Span(0, 48), Span(1, 49))
    assert cut(97, 64, 16) == (Span(0, 64), Span(33, 97))
    assert cut(49, 64, 16) == (Span(0, 49),)


@pytest.mark.parametrize(("tile", "overlap"), [(8, 8), (8, 9), (8, -1), (0, 0), (-4, -5)])
def test_an_overlap_that_is_not_below_the_tile_is_an_error(tile: int, overlap: int) -> None:
    """It would divide by zero, loop for ever, or leave holes."""
    with pytest.raises(ValueError, match="at least 0 and below the tile"):
        cut(100, tile, overlap)


@pytest.mark.parametrize(
    ("length", "ratio", "lead", "samples"),
    [(10, 8, False, 80), (1, 8, False, 8), (5, 4, True, 17), (1, 4, True, 1), (3, 1, False, 3)],
)
def test_an_axis_knows_its_samples(length: int, ratio: int, lead: bool, samples: int) -> None:
    """A leading latent frame stands for one frame, the others for `ratio` each."""
    assert Axis(length, ratio, lead).samples == samples


@given(cuts(), st.integers(1, 8), st.booleans())
def test_samples_of_tiles_cover_all_samples(
    case: tuple[int, int, int], ratio: int, lead: bool
) -> None:
    """Also on a leading axis, where a tile begins with one sample, given an overlap of one."""
    length, tile, overlap = case
    if lead:
        tile, overlap = tile + 1, max(overlap, 1)
    axis = Axis(length, ratio, lead)
    spans = [axis.covered(span) for span in cut(length, tile, overlap)]
    assert (spans[0].start, spans[-1].stop) == (0, axis.samples)
    assert len({len(span) for span in spans}) == 1
    for one, two in pairwise(spans):
        assert two.start <= one.stop
        assert not lead or two.start < one.stop


def test_a_span_is_a_slice_with_a_length() -> None:
    """[2, 5) has three units and cuts out three items."""
    span = Span(2, 5)
    assert len(span) == 3
    assert list(range(10))[span.slice] == [2, 3, 4]
