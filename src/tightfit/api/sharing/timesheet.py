"""What each model of a card took: until the card was done, without anybody waiting for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from tightfit.card.lanes import Queue, Stamp

MOST = 256
"""Calls whose end is not looked at; of more, the older half is: they are long done."""


class Worker(Protocol):
    """Whose time it is.

    Attributes:
        seconds: that its calls took so far.
    """

    seconds: float


@dataclass(frozen=True)
class _Handed:
    """A call that the host is done with, by its clock; `last` is behind it in the card's queue."""

    worker: Worker
    started: float
    ended: float
    last: Stamp


class Timesheet:
    """Seconds of calls that are made one after the other on one card.

    The host hands work over and goes on. A call begins when it is made, or when the card is done
    with the one before, and ends when the card is done with it: what code between calls waits for
    is counted to the call that it waits for. On a card without a clock, the host's time counts.
    """

    def __init__(self, queue: Queue, clock: Callable[[], float] = time.perf_counter) -> None:
        """`queue` is where the card computes; `clock` is the host's, in seconds."""
        self._queue = queue
        self._clock = clock
        self._open: deque[_Handed] = deque()
        self._anchor: tuple[Stamp, float] | None = None
        self._done = float("-inf")

    @contextmanager
    def call(self, worker: Worker) -> Iterator[None]:
        """While inside, `worker` is at work."""
        if self._anchor is None:
            self._set_anchor()
        started = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            last = None if self._anchor is None else self._queue.stamp()
            if last is None:
                worker.seconds += ended - started
            else:
                self._open.append(_Handed(worker, started, ended, last))
                if len(self._open) > MOST:
                    self._look(MOST // 2)

    def settle(self) -> None:
        """All calls are counted; the host waits for the card."""
        self._look(0)
        self._anchor = None

    def _look(self, left: int) -> None:
        if self._anchor is None:
            return
        anchor, at = self._anchor
        while len(self._open) > left:
            call = self._open.popleft()
            end = max(call.ended, at + call.last.seconds_since(anchor))
            call.worker.seconds += max(0.0, end - max(call.started, self._done))
            self._done = end

    def _set_anchor(self) -> None:
        """A point in the queue of which the host knows when it was passed: it waits for it."""
        stamp = self._queue.stamp()
        if stamp is not None:
            stamp.seconds_since(stamp)
            self._anchor = stamp, self._clock()
