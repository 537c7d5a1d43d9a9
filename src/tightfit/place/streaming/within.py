"""Layers whose weights are there for the whole call of a module above them.

A hook costs each of thousands of calls more than all else that is done for it: PyTorch has a slow
way for modules with hooks. So a layer that has none gets another `forward` instead, which looks
whether it is called from where it is expected and goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import nn

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_UNUSUAL: tuple[type[nn.Module], ...] = (torch.jit.ScriptModule, torch.fx.GraphModule)


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody has set some that run with its calls."""
    return any(getattr(module, name) for name in _HOOKS)


def may_stand_in(module: nn.Module, above: nn.Module) -> bool:
    """Whether `module`, most likely called within calls of `above`, can get another `forward`."""
    forward = vars(type(module)).get("forward") or getattr(type(module), "forward", None)
    return (
        type(above).forward is not nn.Module.forward  # else nobody calls it, but what is in it
        and isinstance(forward, FunctionType)
        and "forward" not in vars(module)
        and not has_hooks(module)
        and not isinstance(module, _UNUSUAL)
    )


class ByItself(nn.Module):
    """A call from where it was not expected: a module, for such calls are found as modules'."""

    def forward(
        self,
        enter: Callable[[nn.Module, Any, Any], tuple[Any, Any] | None],
        leave: Callable[[nn.Module], None],
        plain: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """What `plain` gives, between `enter`, which may give other arguments, and `leave`."""
        try:
            moved = enter(self, args, kwargs)
            if moved is not None:
                args, kwargs = moved
            return plain(*args, **kwargs)
        finally:
            leave(self)


class StandIn:
    """Another `forward` of a module, until it is removed."""

    def __init__(self, module: nn.Module, make: Callable[[Callable[..., Any]], Any]) -> None:
        """`make` is given the one there is."""
        self._module = module
        plain: Any = module.forward
        self._put: Any = functools.wraps(plain)(make(plain))
        vars(module)["forward"] = self._put

    def remove(self) -> None:
        """The module has its own again, if nobody has put another one around ours."""
        if vars(self._module).get("forward") is self._put:
            del vars(self._module)["forward"]
