"""What is alive by itself: modules, variables of a context, and frames that run."""

from __future__ import annotations

import contextvars
import sys
import sysconfig
import threading
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tightfit.watch.leaks.frames import is_ours, named_locals, place_of
from tightfit.watch.leaks.holders import attributes_of

_INSTALLED = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


@dataclass(eq=False)
class Root:
    """Where a chain begins.

    Attributes:
        text: what a reader sees of it.
        names: of its values, one each; an empty name says nothing.
        values: what it holds.
        runs: whether it is a frame that runs, which lets go by itself.
    """

    text: str
    names: list[str]
    values: list[Any]
    runs: bool = False

    def name_of(self, value: Any) -> str:
        """The name under which it holds `value`."""
        for name, each in zip(self.names, self.values, strict=True):
            if each is value:
                return name
        return ""


def libraries() -> set[int]:
    """Ids of the modules that Python or an installed package brought, and of their tables."""
    found = set()
    for name, module in list(sys.modules.items()):
        if _is_library(name, module):
            found |= {id(module), id(attributes_of(module))}
    return found


def lasting() -> list[Root]:
    """Every module that is loaded, and the variables of this context."""
    roots = [Root(f"module {name}", [""], [each]) for name, each in list(sys.modules.items())]
    variables = list(contextvars.copy_context().items())
    names = [f"context variable {variable.name}" for variable, _ in variables]
    return [*roots, Root("this context", names, [value for _, value in variables])]


def running() -> list[Root]:
    """Frames that run in any thread, without the leak finder's own, and what they handle."""
    names = {each.ident: each.name for each in threading.enumerate()}
    main = threading.main_thread().ident
    roots: list[Root] = []
    frame: FrameType | None = None
    try:
        for thread, frame in list(sys._current_frames().items()):
            whose = "" if thread == main else f" in thread {names.get(thread, thread)}"
            while frame is not None:
                if not is_ours(frame.f_code):
                    roots.append(_of_frame(frame, whose))
                frame = frame.f_back
    finally:
        frame = None  # among them is our own, which would hold itself, and all of this
    handled = [error for error in sys._current_exceptions().values() if error is not None]
    roots.append(Root("being handled", [""] * len(handled), list(handled), runs=True))
    return roots


def _of_frame(frame: FrameType, whose: str) -> Root:
    pairs = named_locals(frame)
    names = [f"local {name}" for name, _ in pairs]
    values = [value for _, value in pairs]
    return Root(f"running frame {place_of(frame)}{whose}", names, values, runs=True)


def _is_library(name: str, module: Any) -> bool:
    if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__":
        return True
    file = attributes_of(module).get("__file__")
    return isinstance(file, str) and file.startswith(_INSTALLED)
