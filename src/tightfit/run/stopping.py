"""Which calls were asked to stop, by whichever thread, and the points where they do."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from tightfit.errors import Cancelled
from tightfit.run.cancel import Cancel

_me = threading.get_ident


@dataclass(frozen=True, eq=False)
class _Asked:
    """To stop what one thread does.

    Attributes:
        thread: by its identity.
        frame: of the call that makes the others; None is the one call that was under way. It is
            held, so that no later call is taken for it, until it is over.
    """

    thread: int
    frame: FrameType | None


class Stopping:
    """Calls on one card that can be asked to stop, by the frame of whoever makes them.

    Nobody says when the call of a pipeline begins or ends, so each thread's frames are looked at,
    once, when somebody asks. A call that begins later is not meant.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._asked: list[_Asked] = []
        self._inside: dict[int, list[Cancel]] = {}

    def ask(self, is_ours: Callable[[object], bool]) -> int:
        """Stop calls that are under way, and what makes them; in how many threads.

        `is_ours` tells of an object whether a method of it that is running makes such calls.
        """
        outermost = {
            thread: _outermost(frame, is_ours) for thread, frame in sys._current_frames().items()
        }
        with self._guard:
            found = [
                _Asked(thread, frame)
                for thread, frame in outermost.items()
                if frame is not None or thread in self._inside
            ]
            self._asked += found
            for flags in self._inside.values():
                for flag in flags:
                    flag.set()
        return len(found)

    @contextmanager
    def call(self) -> Iterator[Cancel]:
        """While inside, a call is under way; its beginning and its end are points to stop at.

        The flag is for whatever has such points within.
        """
        self._stop_if_asked()
        flag, me = Cancel(), _me()
        with self._guard:
            self._inside.setdefault(me, []).append(flag)
        try:
            yield flag
            self._stop_if_asked()
        except Cancelled:
            self._settle(me)
            raise
        finally:
            with self._guard:
                self._inside[me].remove(flag)
                if not self._inside[me]:
                    del self._inside[me]
            self.forget()

    def check(self) -> None:
        """A point to stop at within a call. Raises `Cancelled` where somebody asked."""
        self._stop_if_asked()

    def forget(self) -> None:
        """Let go what ended without such a point."""
        if not self._asked:
            return
        frames = sys._current_frames()
        with self._guard:
            self._asked = [
                each
                for each in self._asked
                if each.thread in frames
                and (
                    each.thread in self._inside
                    if each.frame is None
                    else _is_below(frames[each.thread], each.frame)
                )
            ]

    def _stop_if_asked(self) -> None:
        if not self._asked:
            return
        me = _me()
        with self._guard:
            mine = [each for each in self._asked if each.thread == me]
        here = sys._getframe()
        if any(each.frame is None or _is_below(here, each.frame) for each in mine):
            self._settle(me)
            raise Cancelled("The call was cancelled by its session; the session goes on.")

    def _settle(self, thread: int) -> None:
        with self._guard:
            self._asked = [each for each in self._asked if each.thread != thread]


def _outermost(frame: FrameType | None, is_ours: Callable[[object], bool]) -> FrameType | None:
    """Of a thread's frames, the first that runs a method of an object of ours."""
    found = None
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",) and is_ours(frame.f_locals.get("self")):
            found = frame
        frame = frame.f_back
    return found


def _is_below(frame: FrameType | None, other: FrameType) -> bool:
    """Whether `other` called what runs in `frame`, or is it."""
    while frame is not None:
        if frame is other:
            return True
        frame = frame.f_back
    return False
