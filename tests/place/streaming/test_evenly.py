"""Some of a row, spread evenly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tightfit.place.streaming.evenly import evenly

SIZES = st.lists(st.integers(0, 100), max_size=30)


@given(SIZES, st.integers(-10, 2000))
def test_no_more_than_there_is_room_for_and_none_that_still_fits_is_left(
    sizes: list[int], room: int
) -> None:
    """What is left out would not fit beside the rest."""
    chosen = evenly(sizes, room)
    taken = sum(sizes[at] for at in chosen)
    assert taken <= max(0, room)
    assert all(taken + size > room for at, size in enumerate(sizes) if at not in chosen)


@given(st.integers(1, 60), st.integers(0, 60))
def test_equal_ones_are_spread_so_that_no_part_of_the_row_has_more_than_its_share(
    count: int, room: int
) -> None:
    """From the start to any point, the share of the whole within one."""
    chosen = evenly([7] * count, 7 * room)
    most = min(count, room)
    assert len(chosen) == most
    for end in range(count + 1):
        inside = sum(1 for at in chosen if at < end)
        assert abs(inside - end * most / count) < 1
