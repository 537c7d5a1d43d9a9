"""Whose code runs: the innermost frame of a user's or a model's, by module and line."""

from __future__ import annotations

import sys
from types import FrameType

_LIBRARY = ("torch", "tightfit", "contextlib", "weakref", "threading")
_MODELS = ("tightfit.testing",)


def caller() -> str | None:
    """``module:line function`` of the innermost frame outside of PyTorch and ourselves.

    With the class, where it is a method. No folders: what is written down may be given away.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in _LIBRARY or name.startswith(_MODELS):
            return f"{name}:{frame.f_lineno} {frame.f_code.co_qualname}"
        frame = frame.f_back
    return None
