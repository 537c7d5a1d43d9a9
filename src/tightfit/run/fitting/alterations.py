"""The methods by which others change the weights of a module, such as those that load a LoRA."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from tightfit.run.fitting.tuners import Tuners

METHODS = (
    "load_lora_adapter",
    "add_adapter",
    "load_adapter",
    "delete_adapter",
    "delete_adapters",
    "unload_lora",
    "fuse_lora",
    "unfuse_lora",
    "fuse_qkv_projections",
    "unfuse_qkv_projections",
    "resize_token_embeddings",
)
"""Of models of diffusers and transformers; adapters come and go, or are written into weights."""
WRITTEN_AFTER = ("resize_token_embeddings",)
"""Of these: who calls them writes values into the new weights then (textual inversion)."""
_OF_LAYERS = ("merge", "unmerge")

Alter = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Given the method's name, what it does, and its arguments; gives the result."""


class Alterations:
    """While they are open, each such method of a module goes through one function.

    Those of single layers, which write into weights, go through another.
    """

    def __init__(self, module: nn.Module, alter: Alter, write: Alter) -> None:
        self._puts: list[tuple[nn.Module, str, Any]] = []
        for name in METHODS:
            self._put(module, name, alter)
        for layer in Tuners(module).layers.values():
            for name in _OF_LAYERS:
                self._put(layer, name, write)

    def close(self) -> None:
        """Everything is as it was; harmless when repeated."""
        while self._puts:
            part, name, before = self._puts.pop()
            vars(part).pop(name, None)
            if before is not None:
                vars(part)[name] = before

    def _put(self, part: nn.Module, name: str, alter: Alter) -> None:
        method = getattr(part, name, None)
        if not callable(method) or isinstance(method, nn.Module):
            return

        @functools.wraps(method)
        def altered(*args: Any, **kwargs: Any) -> Any:
            return alter(name, method, args, kwargs)

        self._puts.append((part, name, vars(part).get(name)))
        vars(part)[name] = altered
