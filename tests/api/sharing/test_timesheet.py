"""Seconds of calls, of which the host only hands the work over."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tightfit.api.sharing.timesheet import MOST, Timesheet
from tightfit.card.lanes import Mark, Queue, Stamp


@dataclass(eq=False)
class At(Stamp):
    """A point that is passed at `passed`."""

    passed: float
    card: Late

    def seconds_since(self, earlier: Stamp) -> float:
        """The host waits."""
        assert isinstance(earlier, At)
        self.card.now = max(self.card.now, self.passed)
        return self.passed - earlier.passed


@dataclass
class Late(Queue):
    """A card with its host, which hands it work; its own clock began before that of the host."""

    now: float = 0.0
    busy: float = 0.0
    ahead: float = 1000.0
    has_clock: bool = True
    waits: list[float] = field(default_factory=list)

    def mark(self, *, again: Mark | None = None) -> Mark:
        raise NotImplementedError

    def wait(self, mark: Mark) -> None:
        raise NotImplementedError

    def stamp(self, *, again: Stamp | None = None) -> Stamp | None:
        """Behind all work."""
        del again
        return At(max(self.busy, self.now), self) if self.has_clock else None

    def work(self, seconds: float, *, handing: float) -> None:
        """The host is busy for `handing`, and the card from then on for `seconds`."""
        self.busy = max(self.busy, self.now) + seconds
        self.now += handing


@dataclass
class One:
    """A worker."""

    seconds: float = 0.0


def sheet(card: Late) -> Timesheet:
    """Of a card, with the clock of its host."""
    return Timesheet(card, clock=lambda: card.now)


def test_calls_last_until_the_card_is_done() -> None:
    """Whoever comes next begins then: the sum is the time that went by."""
    card, one, two = Late(), One(), One()
    times = sheet(card)
    for worker, seconds in ((one, 2.0), (two, 3.0), (one, 1.0)):
        with times.call(worker):
            card.work(seconds, handing=0.1)
    assert card.now == pytest.approx(0.3)
    times.settle()
    assert (one.seconds, two.seconds) == (pytest.approx(3.0), pytest.approx(3.0))
    assert card.now == pytest.approx(6.0)


def test_a_wait_between_two_calls_is_of_the_first() -> None:
    """A scheduler that looks at a value waits for the network before it."""
    card, one = Late(), One()
    times = sheet(card)
    for _ in range(4):
        with times.call(one):
            card.work(2.0, handing=0.1)
        card.now = card.busy  # somebody waits
    times.settle()
    assert one.seconds == pytest.approx(card.now) == pytest.approx(8.0)


def test_what_the_host_does_between_calls_is_nobodys() -> None:
    """Nor is what it does before."""
    card, one = Late(now=5.0), One()
    times = sheet(card)
    for _ in range(2):
        with times.call(one):
            card.work(1.0, handing=0.1)
        card.now = card.busy + 7.0
    times.settle()
    assert one.seconds == pytest.approx(2.0)


def test_a_host_that_is_slower_than_the_card_counts() -> None:
    """The call is as long as it took."""
    card, one = Late(), One()
    times = sheet(card)
    with times.call(one):
        card.work(0.2, handing=3.0)
    times.settle()
    assert one.seconds == pytest.approx(3.0)


def test_without_a_clock_the_hosts_time_counts_at_once() -> None:
    """As on a virtual card, whose work is done when it is handed over."""
    card, one = Late(has_clock=False), One()
    with sheet(card).call(one):
        card.work(0.0, handing=3.0)
    assert one.seconds == pytest.approx(3.0)


def test_a_call_that_fails_counts_too() -> None:
    """Its error goes on."""
    card, one = Late(), One()
    times = sheet(card)

    def fail() -> None:
        with times.call(one):
            card.work(2.0, handing=0.1)
            raise ValueError("of the network")

    with pytest.raises(ValueError, match="of the network"):
        fail()
    times.settle()
    assert one.seconds == pytest.approx(2.0)


def test_of_many_calls_only_the_last_are_kept_open() -> None:
    """None of them is lost, and a second look counts nothing twice."""
    card, one = Late(), One()
    times = sheet(card)
    for _ in range(3 * MOST):
        with times.call(one):
            card.work(0.5, handing=0.4)
    assert one.seconds > MOST * 0.5
    times.settle()
    times.settle()
    assert one.seconds == pytest.approx(1.5 * MOST)
