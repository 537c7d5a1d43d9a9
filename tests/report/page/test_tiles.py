"""Where tiles are drawn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.page.records import event, of
from tightfit.plan.tiles import cut
from tightfit.report.page.tiles import picture
from tightfit.report.trace_file import Trace


def job(count: int, rung: str, *, width: int, height: int, tile: Any = None) -> Trace:
    """`count` pieces of a picture, done one after another."""
    attempt = {"stage": "decode", "rung": rung, "outcome": "ok", "tile": tile}
    report = {"input": {"width": width, "height": height}, "attempts": [attempt]}
    events = [event(n + 1.0, "tile", rung=rung, done=n + 1, total=count) for n in range(count)]
    return of([*events, event(count + 1.0, "report", report=report)])


@given(st.integers(65, 600), st.integers(65, 600), st.sampled_from([64, 96, 128]), st.booleans())
def test_tiles_that_the_planner_cut_are_drawn_where_they_were(
    height: int, width: int, tile: int, named: bool
) -> None:
    """From their number and size alone: equal, spread evenly, a quarter of overlap; no gap."""
    rows, columns = (cut(length, min(tile, length), tile // 4) for length in (height, width))
    count = len(rows) * len(columns)
    rung = f"tiles {tile}x{tile}" if named else "tiles"
    found = picture(
        job(count, rung, width=width, height=height, tile=None if named else [tile, tile]), None
    )
    assert found is not None
    assert found.layers == 1
    assert len(found.tiles) == min(count, 400)
    for drawn in found.tiles:
        assert 0 <= drawn.left <= width - drawn.width
        assert 0 <= drawn.top <= height - drawn.height
    if count <= 400:
        assert max(drawn.left + drawn.width for drawn in found.tiles) == pytest.approx(width)
        assert max(drawn.top + drawn.height for drawn in found.tiles) == pytest.approx(height)


def test_a_clip_that_is_cut_in_time_goes_over_the_picture_several_times() -> None:
    """Four tiles of the picture in three layers."""
    found = picture(job(12, "tiles 9x512x512", width=768, height=768), None)
    assert found is not None
    assert found.layers == 3
    assert {(tile.left, tile.top) for tile in found.tiles} == {
        (left, top) for left in (0.0, 256.0) for top in (0.0, 256.0)
    }


def test_strips_lie_under_one_another() -> None:
    """Equally high, as far as their number tells."""
    found = picture(job(9, "strips", width=384, height=216), None)
    assert found is not None
    assert found.placed == "by number"
    assert [tile.top for tile in found.tiles] == [24.0 * n for n in range(9)]


def test_positions_that_are_told_are_taken() -> None:
    """Left, top, width, height."""
    events = [
        event(1.0, "tile", rung="tiles", done=1, total=2, box=[0, 0, 30, 20]),
        event(2.0, "tile", rung="tiles", done=2, total=2, box=[10, 0, 30, 20]),
    ]
    found = picture(of(events, header={"input": {"width": 40, "height": 20}}), None)
    assert found is not None
    assert found.placed == "told"
    assert [(tile.left, tile.width) for tile in found.tiles] == [(0.0, 30.0), (10.0, 30.0)]


def test_the_picture_reaches_as_far_as_its_pieces() -> None:
    """Of one that was padded, and where nobody says how large it is."""
    events = [event(1.0, "tile", rung="tiles", done=1, total=1, box=[0, 0, 64, 32])]
    for said in ({}, {"input": {"width": 60, "height": 30}}):
        found = picture(of(events, header=said), None)
        assert found is not None
        assert (found.width, found.height) == (64, 32)


def test_of_many_passes_over_the_picture_the_finest_is_drawn() -> None:
    """Two stages of a network in strips, the second in fewer; each piece of a clip in two parts."""
    strips = [[0, 10 * n, 40, 10] for n in range(4)] + [[0, 20 * n, 40, 20] for n in range(2)]
    clip = [[left, 0, 20, 40] for left in (0, 20) for _ in range(3)]
    for boxes, layers, shown in ((strips, 2, strips[:4]), (clip, 3, clip[::3])):
        events = [
            event(n + 1.0, "tile", rung="strips", done=n + 1, total=len(boxes), box=box)
            for n, box in enumerate(boxes)
        ]
        found = picture(of(events, header={"input": {"width": 40, "height": 40}}), None)
        assert found is not None
        assert found.layers == layers
        drawn = [[each.left, each.top, each.width, each.height] for each in found.tiles]
        assert drawn == shown
        assert found.done == len(boxes)


def test_of_two_goes_the_last_is_drawn() -> None:
    """A first one that failed halfway is not mixed with it."""
    first = [event(float(n), "tile", rung="tiles 64x64", done=n, total=9) for n in (1, 2, 3)]
    last = [event(9.0 + n, "tile", rung="tiles 32x32", done=n, total=4) for n in (1, 2, 3, 4)]
    found = picture(of([*first, *last], header={"input": {"width": 50, "height": 50}}), None)
    assert found is not None
    assert (found.rung, found.done, found.total) == ("tiles 32x32", 4, 4)


def test_without_a_size_of_the_picture_there_is_no_drawing() -> None:
    """Nothing is made up."""
    assert picture(of([event(1.0, "tile", rung="strips", done=1, total=1)]), None) is None
