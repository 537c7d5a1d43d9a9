"""Compiled blocks: what hooks do for them is done outside of their graphs.

A module that is compiled as a whole (`module.compile()`) has its hooks in its graph, where ours
cannot be: there they do nothing, and what they would do is done around the call. Where a module is
compiled from its `forward` on, its hooks are outside anyway. Weights change places between calls
without a guard that minds: slots differ in their addresses alone.

Each streamed module inside one graph would end that graph, so a model that is compiled as one
cannot be one graph, nor can a block whose layers are streamed one by one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_COMPILER = "torch._dynamo"
_REASON = "streamed weights come between graphs, so compile the blocks and not what is around them"


def may_compile() -> bool:
    """Whether the compiler is loaded. That takes seconds, so we leave it to those who want it."""
    return _COMPILER in sys.modules


@functools.cache
def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but a graph ends where it is called."""
    disable: Any = torch.compiler.disable
    found: Callable[..., Any] = disable(function, reason=_REASON)
    return found


class Around:
    """Stands in a module for what it was compiled to.

    Attributes:
        inside: such a call is under way, so the module's hooks have nothing to do.
    """

    def __init__(
        self,
        module: nn.Module,
        before: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, Any] | None],
        after: Callable[[], None],
    ) -> None:
        """`before` may give other arguments; `after` is called whatever happened."""
        self.inside = False
        self._module = module
        self._compiled: Callable[..., Any] = compiled_of(module)
        self._before = before
        self._after = after
        _put(module, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module."""
        try:
            moved = self._before(args, kwargs)
            if moved is not None:
                args, kwargs = moved
            was, self.inside = self.inside, True
            try:
                return self._compiled(*args, **kwargs)
            finally:
                self.inside = was
        finally:
            self._after()

    def remove(self) -> None:
        """The module has again what it was compiled to, if nobody has compiled it anew."""
        if compiled_of(self._module) is self:
            _put(self._module, self._compiled)


class Door:
    """Stands before everything else that a call of a module goes through.

    There may be several: those that are `first` come before the others, and in each of the two
    groups the one that came last comes last.

    Attributes:
        inner: what comes next: another door, or what the module is compiled to; None is nothing.
        first: whether it stands before those that are not.
    """

    def __init__(
        self,
        module: nn.Module,
        enter: Callable[[Callable[..., Any], Any, Any], Any],
        *,
        first: bool = False,
    ) -> None:
        """`enter` is given what the call would have been, and its two kinds of arguments."""
        self.first = first
        self._module = module
        self._enter = enter
        doors = _doors(module)
        above = [door for door in doors if door.first] if first else doors
        self.inner: Any = above[-1].inner if above else module._compiled_call_impl
        if above:
            above[-1].inner = self
        else:
            held: Any = module
            held._compiled_call_impl = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module."""
        return self._enter(self.inner or self._module._call_impl, args, kwargs)

    def remove(self) -> None:
        """The module is what it was, if nobody has compiled it anew; harmless when repeated."""
        doors = _doors(self._module)
        if self not in doors:
            return
        at = doors.index(self)
        if at:
            doors[at - 1].inner = self.inner
            return
        held: Any = self._module
        del held._compiled_call_impl
        if self.inner is not None:
            held._compiled_call_impl = self.inner


def compiled_of(module: nn.Module) -> Any:
    """What calls of `module` go to instead of its own; None where it is not compiled."""
    doors = _doors(module)
    return doors[-1].inner if doors else module._compiled_call_impl


def _put(module: nn.Module, call: Callable[..., Any]) -> None:
    held: Any = module
    doors = _doors(module)
    if doors:
        doors[-1].inner = call
    else:
        held._compiled_call_impl = call


def _doors(module: nn.Module) -> list[Door]:
    """In the order in which a call goes through them."""
    found: list[Door] = []
    next_one: Any = module._compiled_call_impl
    while isinstance(next_one, Door):
        found.append(next_one)
        next_one = next_one.inner
    return found
