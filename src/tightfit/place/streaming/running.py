"""The calls of a module and its parts that are under way, one thread at a time."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from torch import nn

from tightfit.errors import UsageError

_OUTER: Any = nn.Module._wrapped_call_impl.__code__
_INNER: Any = nn.Module._call_impl.__code__
_me = threading.get_ident
_LOOK_AGAIN = 0.1
"""Seconds after which a thread that waits looks whether the other's call is still under way."""


@dataclass(eq=False, slots=True)
class Call:
    """A call of a hooked module.

    Attributes:
        module: what is called.
        outermost: no other call of this module's session was under way.
        taken: what has to be let go when it ends, in the order it was taken.
        undo: what else has to be done then, once.
    """

    module: nn.Module
    outermost: bool
    taken: list[Any] = field(default_factory=list)
    undo: Callable[[], None] | None = None


class Running:
    """A stack of calls, in one thread at a time: others wait until the outermost call ends.

    Hooks after a call do not run for `KeyboardInterrupt`, `SystemExit` and `GeneratorExit`, so a
    call may end unseen. Whoever finds an old call in the way (the same module again, another
    thread, the end of the session) looks whether its frame is still there, and ends it if not.

    Attributes:
        owner: the thread whose calls are under way; None where there are none.
    """

    def __init__(self, ended: Callable[[Call, bool], None]) -> None:
        """`ended` is told of each call that ends, innermost first, and whether it was seen to.

        It lets go what was taken; if it is interrupted, it is told again.
        """
        self._ended = ended
        self._stack: list[Call] = []
        self.owner: int | None = None
        self._turn = threading.Condition()

    def enter(self, module: nn.Module, *, waits: bool = True) -> Call:
        """A call of `module` begins. Waits for the calls of other threads.

        Where it does not wait, it raises `UsageError` while there is one.
        """
        me = _me()
        if self.owner != me:  # only its owner gives the turn away
            with self._turn:
                while self.owner not in (None, me):
                    if waits and self._turn.wait(_LOOK_AGAIN):
                        continue
                    self.end_unseen()
                    if not waits and self.owner not in (None, me):
                        raise UsageError("another thread is calling the module now.")
                self.owner = me
                return self._push(module)
        for call in self._stack:
            if call.module is module:
                self.end_unseen(module)
                break
        return self._push(module)

    def leave(self, module: nn.Module) -> None:
        """The call of `module` has ended, and with it those inside that ended unseen."""
        if self.owner != _me():
            return
        stack = self._stack
        depth = len(stack)
        if depth > 1 and stack[-1].module is module:  # nearly always
            self._ended(stack[-1], True)
            stack.pop()
            return
        while depth and stack[depth - 1].module is not module:
            depth -= 1
        if depth > 1:
            self._cut(depth, seen=False)
            self._cut(depth - 1, seen=True)
        elif depth:
            with self._turn:
                self._cut(1, seen=False)
                self._cut(0, seen=True)
                self._give_turn()

    def end_all(self) -> None:
        """The session ends: whatever is still on the stack ended unseen."""
        with self._turn:
            self._cut(0, seen=False)
            self._give_turn()

    def end_unseen(self, called: nn.Module | None = None) -> None:
        """Drop calls whose frames are gone; one of `called` begins, and is not on the stack yet."""
        alive = _frames(self.owner)
        if called is not None:
            alive[id(called)] -= 1
        gone = []
        for call in self._stack:
            alive[id(call.module)] -= 1
            if alive[id(call.module)] < 0:
                gone.append(call)
        for call in reversed(gone):
            self._ended(call, False)
            self._stack.remove(call)
        if self._stack:
            self._stack[0].outermost = True
        elif called is None:
            self.owner = None

    def _cut(self, depth: int, *, seen: bool) -> None:
        while len(self._stack) > depth:
            self._ended(self._stack[-1], seen)
            self._stack.pop()

    def _push(self, module: nn.Module) -> Call:
        call = Call(module, not self._stack)
        self._stack.append(call)
        return call

    def _give_turn(self) -> None:
        self.owner = None
        self._turn.notify_all()


def _frames(thread: int | None) -> Counter[int]:
    """How often each module (by id) is being called in `thread`."""
    found: Counter[int] = Counter()
    frame = sys._current_frames().get(thread) if thread is not None else None
    while frame is not None:
        outside = frame.f_back
        if _runs(frame, _OUTER) or (_runs(frame, _INNER) and not _runs(outside, _OUTER)):
            found[id(frame.f_locals.get("self"))] += 1
        frame = outside
    return found


def _runs(frame: FrameType | None, code: CodeType) -> bool:
    """Whether `frame` runs `code`, also as a compiler has rewritten it."""
    if frame is None:
        return False
    mine = frame.f_code
    return mine is code or (mine.co_name == code.co_name and mine.co_filename == code.co_filename)
