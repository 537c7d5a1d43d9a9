"""Work that a thread does behind the one that hands it over: in order, a few things at most."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_MOST = 2
"""Things that may wait, beside the one that is worked on."""


class Behind(Generic[T]):
    """A thread that does `work` on each thing that is `put`; begun with the first.

    An error of the work is raised by the next `put`, or by `finish`; nothing is done after it.
    `finish` or `stop` ends the thread, `finish` even where it raises.
    """

    def __init__(self, work: Callable[[T], None]) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._error: BaseException | None = None
        self._over = False
        self._thread: threading.Thread | None = None

    def put(self, thing: T) -> None:
        """Wait until there is room, and leave `thing` to the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tightfit-behind", daemon=True)
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or len(self._waiting) < _MOST)
            if self._error is None:
                self._waiting.append(thing)
                self._changed.notify_all()
        self._raise()

    def finish(self) -> None:
        """Wait until all is done, and end."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        try:
            if self._thread is not None:
                self._thread.join()
            self._raise()
        finally:
            self.stop()

    def stop(self) -> None:
        """End without what waits; errors are dropped, since somebody has one already."""
        with self._changed:
            self._waiting.clear()
            self._over = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._error = None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or bool(self._waiting))
                if not self._waiting:
                    return
                thing = self._waiting.popleft()
                self._changed.notify_all()
            try:
                self._work(thing)
            except BaseException as error:
                with self._changed:
                    self._waiting.clear()
                    self._error, self._over = error, True
                    self._changed.notify_all()
                return
            del thing

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
