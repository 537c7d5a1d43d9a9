"""Work that a thread does behind the one that hands it over."""

from __future__ import annotations

import threading

import pytest

from tightfit.api.behind import Behind


def test_everything_is_done_in_order() -> None:
    """When `finish` returns, and the thread is gone."""
    done: list[int] = []
    behind = Behind(done.append)
    for number in range(20):
        behind.put(number)
    behind.finish()
    assert done == list(range(20))
    assert behind._thread is not None
    assert not behind._thread.is_alive()


def test_few_things_wait() -> None:
    """Whoever hands over more waits for the work."""
    may_go_on, done, handed = threading.Event(), [], []

    def work(number: int) -> None:
        may_go_on.wait()
        done.append(number)

    behind = Behind(work)

    def hand() -> None:
        for number in range(9):
            behind.put(number)
            handed.append(number)

    one = threading.Thread(target=hand)
    one.start()
    one.join(0.2)
    assert one.is_alive()
    assert len(handed) <= 3
    may_go_on.set()
    one.join()
    behind.finish()
    assert done == list(range(9))


@pytest.mark.parametrize("ask", ["put", "finish"])
def test_an_error_is_raised_to_who_hands_over(ask: str) -> None:
    """Again and again; nothing is done after it, and nobody waits for a thread that is gone."""
    done: list[int] = []

    def work(number: int) -> None:
        if number == 1:
            raise OSError(28, "No space left on device")
        done.append(number)

    behind = Behind(work)
    for number in range(2):
        behind.put(number)
    assert behind._thread is not None
    behind._thread.join()
    for _ in range(5 if ask == "put" else 1):
        with pytest.raises(OSError, match="No space"):
            behind.put(2) if ask == "put" else behind.finish()
    behind.stop()
    assert done == [0]


def test_what_waits_is_dropped_by_stop() -> None:
    """The thread ends with what it is at."""
    may_go_on, done = threading.Event(), []

    def work(number: int) -> None:
        may_go_on.wait()
        done.append(number)

    behind = Behind(work)
    behind.put(0)
    behind.put(1)
    while len(behind._waiting) > 1:
        pass
    threading.Timer(0.05, may_go_on.set).start()
    behind.stop()
    assert done == [0]
    assert behind._thread is not None
    assert not behind._thread.is_alive()
