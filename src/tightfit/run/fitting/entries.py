"""The ways into a module: its call, and the methods that pipelines use instead of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tightfit.place.streaming.compiled import Door
from tightfit.run.fitting.guard import Guard

METHODS = (
    "encode",
    "decode",
    "get_text_features",
    "get_image_features",
    "post_process_latents",
)
"""What pipelines call on autoencoders, on encoders of two kinds of things, and on priors, instead
of them."""

Enter = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Given the method's name, what it does, and its arguments; gives the result."""


class Entries:
    """While they are open, every way into a module goes through one function.

    The class stays what it is, and hooks on calls of the module run inside. Ways that would write
    to weights or move them are closed: see `Guard`.
    """

    def __init__(
        self,
        module: nn.Module,
        devices: tuple[torch.device | None, ...],
        enter: Enter,
        note: Callable[[str], None],
    ) -> None:
        """`devices` and `note` are for the guard."""
        self._module = module
        self._before = {name: vars(module)[name] for name in METHODS if name in vars(module)}
        for name in METHODS:
            method = getattr(module, name, None)
            if callable(method) and not isinstance(method, nn.Module):
                vars(module)[name] = self._through(name, method, enter)
        self._guard = Guard(module, devices, note)
        self._door = Door(module, lambda call, args, kwargs: enter("forward", call, args, kwargs))

    def close(self) -> None:
        """Everything is as it was; harmless when repeated."""
        for name in METHODS:
            vars(self._module).pop(name, None)
        vars(self._module).update(self._before)
        self._door.remove()
        self._guard.remove()

    @staticmethod
    def _through(name: str, method: Callable[..., Any], enter: Enter) -> Callable[..., Any]:
        @functools.wraps(method)
        def entered(*args: Any, **kwargs: Any) -> Any:
            return enter(name, method, args, kwargs)

        return entered
