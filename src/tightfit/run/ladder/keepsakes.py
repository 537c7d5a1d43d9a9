"""What a module keeps on itself after a call, found by looking before and after.

A VAE of the Wan kind keeps its feature cache in an attribute when a call fails half-way: hundreds
of megabytes that no traceback explains.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from tightfit.units import format_bytes
from tightfit.weigh import Held, Kind, walk


class Keepsakes:
    """Remembers which plain attributes held tensors; `drop` takes the new ones away.

    Tensors that were there before stay. Nothing here keeps a tensor alive.
    """

    def __init__(self, module: nn.Module, *, name: str = "") -> None:
        self._module = module
        self._name = name
        self._before: dict[tuple[int, str, tuple[Any, ...]], weakref.ref[torch.Tensor]] = {
            (id(held.owner), held.name, held.steps): weakref.ref(held.tensor)
            for held in _attributes(module)
        }

    def drop(self) -> tuple[str, ...]:
        """Detach every tensor that was not there before; one line per attribute, with bytes."""
        lost: dict[str, list[int]] = {}
        for held in list(_attributes(self._module)):
            known = self._before.get((id(held.owner), held.name, held.steps))
            if known is not None and known() is held.tensor:
                continue
            size = held.tensor.nbytes
            try:
                _detach(held)
            except (TypeError, LookupError):  # the tuple around it went a moment ago
                continue
            base = held.path.partition("[")[0]
            lost.setdefault(f"{self._name}.{base}" if self._name else base, []).append(size)
        return tuple(
            f"{path} ({len(sizes)} tensors, {format_bytes(sum(sizes))})"
            for path, sizes in lost.items()
        )


def _attributes(module: nn.Module) -> list[Held]:
    return [held for held in walk(module) if held.kind is Kind.ATTRIBUTE]


def _detach(held: Held) -> None:
    """Put None where the tensor was; a tuple cannot be written, so its attribute goes whole."""
    container = getattr(held.owner, held.name)
    path = []
    for step in held.steps:
        path.append((container, step))
        container = container[step]
    if not path or any(isinstance(level, tuple) for level, _ in path):
        setattr(held.owner, held.name, None)
    else:
        level, step = path[-1]
        level[step] = None
