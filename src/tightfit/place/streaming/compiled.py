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

    Attributes:
        inner: what the module is compiled to; None is nothing.
    """

    def __init__(
        self, module: nn.Module, enter: Callable[[Callable[..., Any], Any, Any], Any]
    ) -> None:
        """`enter` is given what the call would have been, and its two kinds of arguments."""
        self.inner: Any = compiled_of(module)
        self._module = module
        self._enter = enter
        held: Any = module
        held._compiled_call_impl = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the module."""
        return self._enter(self.inner or self._module._call_impl, args, kwargs)

    def remove(self) -> None:
        """The module is what it was, if nobody has compiled it anew."""
        if self._module._compiled_call_impl is self:
            held: Any = self._module
            del held._compiled_call_impl
            if self.inner is not None:
                _put(self._module, self.inner)


def compiled_of(module: nn.Module) -> Any:
    """What calls of `module` go to instead of its own; None where it is not compiled."""
    found: Any = module._compiled_call_impl
    return found.inner if isinstance(found, Door) else found


def _put(module: nn.Module, call: Callable[..., Any]) -> None:
    held: Any = module
    if isinstance(held._compiled_call_impl, Door):
        held._compiled_call_impl.inner = call
    else:
        held._compiled_call_impl = call
