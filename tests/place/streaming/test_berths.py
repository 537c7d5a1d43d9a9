"""Where masters lie in the ring's memory."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tightfit.place.streaming.berths import laps_of, slot_of
from tightfit.place.streaming.layout import ALIGNMENT


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=12), st.integers(1, 4))
def test_each_lies_within_the_memory_and_beside_the_one_before_it(
    sizes: list[int], slots: int
) -> None:
    """Aligned; and two that follow one another overlap only where the room is one slot's."""
    room = slot_of(sizes) * slots
    laps = laps_of(sizes, slots)
    assert 1 <= len(laps) <= 4
    for lap in laps:
        assert len(lap) == len(sizes)
        for start, size in zip(lap, sizes, strict=True):
            assert start % ALIGNMENT == 0
            assert start >= 0
            assert start + size <= room
        if len(set(sizes)) == 1 and slots > 1:
            spans = [(start, start + size) for start, size in zip(lap, sizes, strict=True)]
            pairs = itertools.pairwise(spans)
            assert all(one[1] <= two[0] or two[1] <= one[0] for one, two in pairs)


def test_equal_ones_take_turns_in_the_slots_over_the_end_of_a_lap() -> None:
    """Three through two slots: the first of the second lap does not lie where the last one does."""
    slot = slot_of([1000])
    assert laps_of([1000] * 3, 2) == ((0, slot, 0), (slot, 0, slot))


def test_small_ones_share_the_room_of_a_large_one() -> None:
    """Side by side where more of them are ahead that way."""
    big, small = 4096, 1024
    assert laps_of([big, small, small, small], 2)[0] == (0, 4096, 5120, 6144)
