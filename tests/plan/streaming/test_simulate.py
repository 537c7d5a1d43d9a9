"""One step played through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.streaming.test_spread import pieces_of
from tightfit.plan.streaming.simulate import step_seconds
from tightfit.plan.streaming.spread import spread


def test_what_is_all_resident_takes_its_compute_time() -> None:
    """Nothing is copied, so nothing waits."""
    took = step_seconds(pieces_of([1] * 8), [True] * 8, slots=2, compute=3.0, link=1.0)
    assert took == pytest.approx(3.0)


def test_a_contiguous_tail_waits_for_the_link_and_a_spread_does_not() -> None:
    """The same bytes are streamed; where compute and copies take equally long, it shows."""
    pieces = pieces_of([1] * 60)
    tail = [True] * 30 + [False] * 30
    even = spread(pieces, [False] * 60, 30)
    assert sum(even) == sum(tail)
    slow = step_seconds(pieces, tail, slots=2, compute=30.0, link=1.0)
    fast = step_seconds(pieces, even, slots=2, compute=30.0, link=1.0)
    assert fast == pytest.approx(30.0, rel=0.02)
    assert 1.4 * fast < slow < 1.7 * fast


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=30),
    st.integers(2, 4),
    st.floats(0.0, 100.0),
    st.floats(0.5, 10.0),
)
def test_no_step_is_faster_than_its_limit(
    drawn: list[tuple[int, bool]], slots: int, compute: float, link: float
) -> None:
    """``max(C, B/W)`` bounds it from below, and one after the other from above."""
    pieces = pieces_of([size for size, _ in drawn])
    stays = [stay for _, stay in drawn]
    if not any(piece.bytes for piece in pieces):
        compute = 0.0
    moved = sum(piece.moved for piece, stay in zip(pieces, stays, strict=True) if not stay)
    took = step_seconds(pieces, stays, slots=slots, compute=compute, link=link)
    assert took <= compute + moved / link + 1e-6
    # The third step may still profit from what was copied ahead in the first two.
    ahead = slots * max(piece.moved for piece in pieces) / link
    assert took >= max(compute, moved / link - ahead) - 1e-6
