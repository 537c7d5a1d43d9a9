"""What the reading before a call tells of the call before it."""

from __future__ import annotations

from tightfit.card import Reading
from tightfit.run.fitting.pressure import Pressure


def read(retries: int = 0, refusals: int | None = 0) -> Reading:
    return Reading(100, 0, 0, 0, 0, 0, 0, refusals=refusals, retries=retries)


def test_the_first_call_of_a_kind_may_have_retries() -> None:
    """They fill the cache; in the second they will not stop by themselves."""
    pressure = Pressure()
    assert pressure.found(read()) is None
    pressure.begins("a", read(0))
    assert pressure.found(read(2)) is None
    pressure.begins("a", read(2))
    assert pressure.found(read(3)) == "a"


def test_a_refusal_counts_from_the_first_call_on() -> None:
    """A library went on without its scratch, with another algorithm."""
    pressure = Pressure()
    pressure.begins("a", read())
    assert pressure.found(read(refusals=1)) == "a"


def test_a_call_is_said_once() -> None:
    """However often the card is read before the next."""
    pressure = Pressure()
    pressure.begins("a", read())
    assert pressure.found(read(refusals=1)) == "a"
    assert pressure.found(read(refusals=2)) is None


def test_each_kind_fills_the_cache_for_itself() -> None:
    """A first call of other shapes after many of one kind may have retries too."""
    pressure = Pressure()
    for _ in range(3):
        pressure.begins("a", read())
        assert pressure.found(read()) is None
    pressure.begins("b", read())
    assert pressure.found(read(1)) is None


def test_when_weights_were_moved_it_begins_anew() -> None:
    """The allocator's cache is another then; what was going on is nobody's."""
    pressure = Pressure()
    for at in range(2):
        pressure.begins("a", read(at))
        pressure.found(read(at))
    pressure.begins("a", read(5))
    pressure.moved()
    assert pressure.found(read(7)) is None
    pressure.begins("a", read(7))
    assert pressure.found(read(8)) is None


def test_where_refusals_are_not_counted_retries_tell() -> None:
    """Not every allocator counts both."""
    pressure = Pressure()
    for at, found in enumerate((None, "a")):
        pressure.begins("a", read(at, None))
        assert pressure.found(read(at + 1, None)) == found
