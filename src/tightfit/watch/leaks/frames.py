"""Frames: what their locals are, without leaving copies behind, and whose they were."""

from __future__ import annotations

import inspect
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_OWN = ("watch/leaks/", "api/leaking.py", "testing/pytest_plugin.py")
_PACKAGE = Path(__file__).parents[2].as_posix() + "/"
_ONLY_OURS = 3
"""References to a dict of locals that nobody else reads: the frame's, ours, and the count's."""


def is_ours(code: CodeType) -> bool:
    """Whether it belongs to the leak finder."""
    file = code.co_filename.replace("\\", "/")
    return file.startswith(_PACKAGE) and file[len(_PACKAGE) :].startswith(_OWN)


def named_locals(frame: FrameType) -> list[tuple[str, Any]]:
    """Names and values; the frame keeps no copy of them afterwards.

    Before Python 3.13 to ask a frame for its locals makes a dict that it keeps: one more holder.
    Where nobody else has that dict it is emptied again, which leaves the locals as they are.
    """
    found = frame.f_locals
    pairs = list(found.items())
    is_copy = type(found) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_copy and sys.getrefcount(found) <= _ONLY_OURS:
        found.clear()
    return pairs


def name_of_local(frame: FrameType, value: Any) -> str | None:
    """The local that is `value`."""
    for name, each in named_locals(frame):
        if each is value:
            return name
    return None


def place_of(frame: FrameType) -> str:
    """Such as ``load at loader.py:12``."""
    code = frame.f_code
    return f"{code.co_qualname} at {Path(code.co_filename).name}:{frame.f_lineno}"


def finished_thread(frame: FrameType) -> str | None:
    """The name of the thread that `frame` ran in, where that has ended; None where it has not."""
    top = frame
    while top.f_back is not None:
        top = top.f_back
    if Path(top.f_code.co_filename).name != "threading.py":
        return None
    for name, value in named_locals(top):
        if name == "self" and isinstance(value, threading.Thread):
            return None if value.is_alive() else value.name
    return None
