"""How many items at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tightfit.plan.batch import MOST_AT_ONCE, batch_for

SIZES = st.integers(0, 1000)


def test_a_batch_is_bounded_by_the_room() -> None:
    """A fixed part once, and a part for each."""
    assert batch_for(64, fixed=10, each=20, room=59) == 2
    assert batch_for(64, fixed=10, each=20, room=29) == 0
    assert batch_for(64, fixed=10, each=20, room=5) == 0
    assert batch_for(1, fixed=10, each=20, room=1000) == 1


def test_what_is_unknown_is_tried_one_by_one() -> None:
    """The least is the safest."""
    assert batch_for(64, fixed=None, each=20, room=1000) == 1
    assert batch_for(64, fixed=10, each=None, room=1000) == 1


@given(st.integers(1, 100), SIZES, SIZES, SIZES, st.integers(0, 500))
def test_a_batch_fits_and_grows_with_the_room(
    items: int, fixed: int, each: int, room: int, more: int
) -> None:
    """Never above the cap, nor above what there is to do."""
    batch = batch_for(items, fixed=fixed, each=each, room=room)
    assert 0 <= batch <= min(items, MOST_AT_ONCE)
    assert not batch or fixed + batch * each <= room
    assert batch_for(items, fixed=fixed, each=each, room=room + more) >= batch
