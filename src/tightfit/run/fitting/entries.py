"""The ways into a module: its call, and the methods that pipelines use instead of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

METHODS = ("encode", "decode")
"""What is called on autoencoders, whose own call hardly anybody uses."""
_CALL = "_compiled_call_impl"
"""Where PyTorch looks for what a call of a module does instead, hooks included."""

Enter = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Given the method's name, what it does, and its arguments; gives the result."""


class Entries:
    """While they are open, every way into a module goes through one function.

    The class stays what it is, and hooks on calls of the module run inside.
    """

    def __init__(self, module: nn.Module, enter: Enter) -> None:
        self._module = module
        self._before = {name: vars(module)[name] for name in METHODS if name in vars(module)}
        self._compiled = vars(module).get(_CALL)
        for name in METHODS:
            method = getattr(module, name, None)
            if callable(method):
                vars(module)[name] = self._through(name, method, enter)
        vars(module)[_CALL] = self._through("forward", self._compiled or module._call_impl, enter)

    def close(self) -> None:
        """Everything is as it was; harmless when repeated."""
        for name in (*METHODS, _CALL):
            vars(self._module).pop(name, None)
        vars(self._module).update(self._before)
        if self._compiled is not None:
            vars(self._module)[_CALL] = self._compiled

    @staticmethod
    def _through(name: str, method: Callable[..., Any], enter: Enter) -> Callable[..., Any]:
        @functools.wraps(method)
        def entered(*args: Any, **kwargs: Any) -> Any:
            return enter(name, method, args, kwargs)

        return entered
