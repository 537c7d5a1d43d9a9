"""What is done to a module between its calls, in a turn of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch import nn

from tightfit.errors import UsageError
from tightfit.place.streaming.running import Running


def between_calls(
    running: Running, what: str, work: Callable[[], None], *, waits: bool = True
) -> None:
    """Do `work` as if it were a call itself: after those of other threads, and before the next.

    Raises `UsageError`, saying `what` was wanted, in the middle of a call of this thread; also of
    another one, unless it `waits`.
    """
    me = threading.get_ident()
    if running.owner == me:
        running.end_unseen()
        if running.owner == me:
            raise UsageError(f"{what} is for between two calls of the module, not for inside one.")
    _Turn()(running, work, waits)


class _Turn(nn.Module):
    """A module, so that an interrupt and other threads find its call where they look for calls."""

    def forward(self, running: Running, work: Callable[[], None], waits: bool) -> None:
        running.enter(self, waits=waits)
        try:
            work()
        finally:
            running.leave(self)
