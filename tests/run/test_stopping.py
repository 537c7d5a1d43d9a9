"""Calls that are asked to stop: those under way, at their next point, and no others."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from tightfit.errors import Cancelled
from tightfit.run.cancel import Cancel
from tightfit.run.stopping import Stopping


class Maker:
    """Makes calls, as a pipeline does; between them somebody may do something."""

    def __init__(self, stopping: Stopping, between: Callable[[int], object]) -> None:
        self.stopping = stopping
        self.between = between
        self.made = 0

    def run(self, calls: int = 3) -> int:
        big = set(range(10))
        self.seen = weakref.ref(big)
        for at in range(calls):
            with self.stopping.call():
                self.made += 1
            self.between(at)
        return self.made


def test_what_makes_calls_stops_at_the_next() -> None:
    """And once: what it does afterwards is not meant."""
    stopping = Stopping()
    maker = Maker(stopping, lambda at: at == 1 and stopping.ask(lambda thing: thing is maker))
    with pytest.raises(Cancelled):
        maker.run()
    assert maker.made == 2
    maker.between = lambda at: None
    assert maker.run() == 5


def test_a_call_that_begins_later_is_not_meant() -> None:
    """Also where the one that was meant had no point left, and its frame is not kept."""
    stopping = Stopping()
    maker = Maker(stopping, lambda at: at == 2 and stopping.ask(lambda thing: thing is maker))
    assert maker.run() == 3
    maker.between = lambda at: None
    stopping.forget()
    gc.collect()
    assert maker.seen() is None
    assert maker.run() == 6


def test_nobody_is_meant_where_nobody_calls() -> None:
    """What only has a method that runs, of another object, goes on."""
    stopping = Stopping()
    assert stopping.ask(lambda thing: False) == 0
    maker = Maker(stopping, lambda at: stopping.ask(lambda thing: thing is stopping))
    assert maker.run() == 3


def call(stopping: Stopping, does: Callable[[Cancel], object]) -> None:
    with stopping.call() as flag:
        does(flag)


def test_a_call_under_way_stops_at_its_end_or_within() -> None:
    """The flag is for whatever has points of its own."""
    stopping, asked = Stopping(), []

    def ask(flag: Cancel) -> None:
        asked.append(stopping.ask(lambda thing: False))
        with pytest.raises(Cancelled):
            flag.check()

    with pytest.raises(Cancelled):
        call(stopping, ask)
    assert asked == [1]
    call(stopping, lambda flag: flag.check())
    with pytest.raises(Cancelled):
        call(stopping, lambda flag: (stopping.ask(lambda thing: False), stopping.check()))
    call(stopping, lambda flag: stopping.check())


def test_an_error_of_its_own_passes() -> None:
    """And what was asked of a call that failed does not stop the next."""
    stopping = Stopping()
    with pytest.raises(ZeroDivisionError):
        call(stopping, lambda flag: stopping.ask(lambda thing: False) // 0)
    call(stopping, lambda flag: flag.check())


def test_threads_are_meant_one_by_one() -> None:
    """Those that make calls, and those that do not are left alone."""
    stopping, begun, go_on = Stopping(), threading.Barrier(3), threading.Event()
    said: list[str] = []

    def pause(at: int) -> None:
        if at == 0:
            begun.wait(30)
            assert go_on.wait(30)

    makers = [Maker(stopping, pause) for _ in range(2)]

    def work(name: str, maker: Maker) -> None:
        try:
            said.append(f"{name} made {maker.run()}")
        except Cancelled:
            said.append(f"{name} stopped")

    threads = [
        threading.Thread(target=work, args=(name, maker))
        for name, maker in zip("ab", makers, strict=True)
    ]
    for thread in threads:
        thread.start()
    begun.wait(30)
    assert stopping.ask(lambda thing: thing is makers[0]) == 1
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert sorted(said) == ["a stopped", "b made 3"]
