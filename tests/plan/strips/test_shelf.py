"""Places in one piece of memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tightfit.plan.strips.shelf import ALIGNMENT, Shelf, rounded

MOVES = st.lists(st.one_of(st.integers(0, 5000), st.integers(-50, -1)), max_size=60)


@given(MOVES)
def test_no_two_live_pieces_overlap_and_all_of_them_lie_below_the_top(moves: list[int]) -> None:
    """A number takes so many bytes; a negative one gives back one of those that live."""
    shelf, live = Shelf(), []
    most = 0
    for move in moves:
        if move >= 0:
            offset = shelf.take(move)
            assert offset % ALIGNMENT == 0
            for other, size in live:
                apart = offset + rounded(move) <= other or other + rounded(size) <= offset
                assert apart or not rounded(size) or not rounded(move)
            live.append((offset, move))
        elif live:
            shelf.give(*live.pop(move % len(live)))
        assert all(offset + rounded(size) <= shelf.top for offset, size in live)
        most = max(most, sum(rounded(size) for _, size in live))
    assert shelf.top >= most


@given(MOVES, st.randoms(use_true_random=False))
def test_everything_given_back_is_one_gap_again(moves: list[int], luck: object) -> None:
    """In whatever order it comes back: all of it can be taken as one, and nothing grows."""
    shelf, live = Shelf(), []
    for move in moves:
        if move >= 0:
            live.append((shelf.take(move), move))
        elif live:
            shelf.give(*live.pop(move % len(live)))
    luck.shuffle(live)  # type: ignore[attr-defined]
    for piece in live:
        shelf.give(*piece)
    top = shelf.top
    assert shelf.take(top) == 0
    assert shelf.top == top
    shelf.give(0, top)
    assert shelf.take(top + 1) == 0
    assert shelf.top == rounded(top + 1)


def test_the_smallest_gap_that_fits_is_taken() -> None:
    """Large gaps are left for what is large."""
    shelf = Shelf()
    pieces = [(shelf.take(size * ALIGNMENT), size * ALIGNMENT) for size in (4, 1, 2, 1)]
    shelf.give(*pieces[0])
    shelf.give(*pieces[2])
    assert shelf.take(2 * ALIGNMENT) == pieces[2][0]
    assert shelf.take(3 * ALIGNMENT) == 0
