"""One try that is expected to hold, without a wait for the device: the steady state of a loop."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tightfit.card import Card
from tightfit.run.ladder.keepsakes import Keepsakes
from tightfit.run.ladder.oom import device_oom_behind
from tightfit.run.ladder.release import cut, in_one_line

T = TypeVar("T")


def once(call: Callable[[], T], card: Card, keepsakes: Keepsakes) -> tuple[list[T], str]:
    """The value of `call` in a list; an empty one, and what the device said, where it ran full.

    In the latter case everything of the try is released before this returns: frames along the
    chain, what the module kept since `keepsakes` were made, cycles, and the allocator's cache. Any
    other error passes through.
    """
    failure = ""
    outside = sys.exception()
    try:
        return [call()], failure
    except BaseException as error:
        oom = device_oom_behind(error, outside=outside)
        if oom is None:
            raise
        failure = in_one_line(oom)
        cut(error, outside=outside)
    keepsakes.drop()
    gc.collect()
    with suppress(RuntimeError):  # a device that is broken says so to the next try
        card.trim()
    return [], failure
