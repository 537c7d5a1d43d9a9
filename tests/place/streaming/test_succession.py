"""Which weights come next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tightfit.place.streaming.succession import Succession

ORDERS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def test_at_first_the_foretold_order_is_believed_and_begins_anew() -> None:
    """Before anything was seen, its first comes next."""
    coming = Succession("abcd")
    assert coming.coming(3) == ("a", "b", "c")
    coming.saw("c")
    assert coming.coming(3) == ("d", "a", "b")
    assert coming.coming(9) == ("d", "a", "b", "c")


def test_what_was_seen_is_believed_over_what_was_foretold() -> None:
    """A block that is left out is not expected again."""
    coming = Succession("abcd")
    for item in "acd" * 2:
        coming.saw(item)
    assert coming.coming(2) == ("a", "c")


def test_two_that_went_before_tell_more_than_one() -> None:
    """An embedding that is used first and last is followed by two different blocks."""
    coming = Succession("abc")
    for item in "abcaabcaabca":
        coming.saw(item)
    coming.saw("b")
    assert coming.coming(2) == ("c", "a")
    coming = Succession("abcd")
    for item in "abacad" * 3:
        coming.saw(item)
    for item, following in zip("abacad", "bacada", strict=True):
        coming.saw(item)
        assert coming.coming(1) == (following,)


@given(ORDERS, st.permutations(range(6)), st.integers(1, 6))
def test_a_new_order_is_learnt_in_two_rounds(
    before: list[int], order: list[int], length: int
) -> None:
    """Whatever was seen before, and whichever of the items it leaves out."""
    coming = Succession(range(6))
    rounds = order[:length]
    for item in before + rounds * 3:
        coming.saw(item)
    for at, item in enumerate(rounds):
        coming.saw(item)
        if length > 1:
            assert coming.coming(1) == (rounds[(at + 1) % length],)


@given(ORDERS, st.integers(0, 8))
def test_never_more_than_asked_for_and_never_twice(seen: list[int], count: int) -> None:
    """Whatever came before."""
    coming = Succession(range(6))
    for item in seen:
        coming.saw(item)
    told = coming.coming(count)
    assert len(told) <= count
    assert len(set(told)) == len(told)


def test_nothing_follows_nothing() -> None:
    """An empty order has no next."""
    assert Succession([]).coming(3) == ()
