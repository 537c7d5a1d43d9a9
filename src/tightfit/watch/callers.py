"""Whose code runs: the innermost frame of a user's or a model's, by module and line."""

from __future__ import annotations

import sys
from types import FrameType

_LIBRARY = ("torch", "contextlib", "weakref", "threading", "concurrent", "typer", "click", "runpy")
_MODELS = "tightfit.testing"
_COMMANDS = "tightfit.cli"
_BOOKS = ("tightfit.watch", "tightfit.card", "tightfit.allocators")
"""They hear of what others ask for."""


def caller() -> str | None:
    """``module:line function`` of the innermost frame outside of PyTorch and ourselves.

    With the class, where it is a method. What we ask for by ourselves, as room for weights, has
    the module of ours that did beside it, ``app:12 main, in tightfit.place.whole``; of a command,
    where nobody else's code runs, it is that alone. No folders: what is written down may be given
    away.
    """
    frame: FrameType | None = sys._getframe(1)
    ours: FrameType | None = None
    while frame is not None:
        name = _module_of(frame)
        if name.startswith(_COMMANDS):
            break
        if name.partition(".")[0] == "tightfit" and not name.startswith(_MODELS):
            if ours is None and not name.startswith(_BOOKS):
                ours = frame
        elif name.partition(".")[0] not in _LIBRARY:
            return _written(frame) + ("" if ours is None else f", in {_module_of(ours)}")
        frame = frame.f_back
    return None if ours is None else _written(ours)


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _written(frame: FrameType) -> str:
    return f"{_module_of(frame)}:{frame.f_lineno} {frame.f_code.co_qualname}"
