"""What a module keeps on itself after a call, found by looking before and after.

A VAE of the Wan kind keeps its feature cache in an attribute when a call fails half-way: hundreds
of megabytes that no traceback explains.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tightfit.units import format_bytes
from tightfit.weigh import DEPTH, Held, Kind, walk

_MACHINERY = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, str, type(None))

Recipe = Callable[[], Any]
"""Gives what an attribute held."""


class Keepsakes:
    """Remembers the plain attributes of a module; `drop` puts back those that took on tensors.

    Tensors on `device` are remembered weakly: nothing here keeps one alive. What lies elsewhere
    is left alone, and is put back where a tensor on `device` took its place.

    Args:
        module: what to look at.
        device: only tensors on it count.
        name: what the module is called in reports.
    """

    def __init__(self, module: nn.Module, *, device: torch.device, name: str = "") -> None:
        self._module = module
        self._device = device
        self._name = name
        self._known: list[weakref.ref[torch.Tensor]] = []
        self._recipes: dict[tuple[int, str], Recipe] = {
            (id(owner), attribute): self._recipe(value, DEPTH)
            for owner in module.modules()
            for attribute, value in vars(owner).items()
            if attribute not in _MACHINERY
        }

    def drop(self) -> tuple[str, ...]:
        """Put back each attribute that holds tensors it did not hold; a line for each, in bytes."""
        known = {id(tensor) for ref in self._known if (tensor := ref()) is not None}
        lost: dict[tuple[int, str], list[Held]] = {}
        for held in walk(self._module):
            new = held.tensor.device == self._device and id(held.tensor) not in known
            if new and held.kind is Kind.ATTRIBUTE and held.name not in _MACHINERY:
                lost.setdefault((id(held.owner), held.name), []).append(held)
        return tuple(self._put_back(key, helds) for key, helds in lost.items())

    def _put_back(self, key: tuple[int, str], helds: list[Held]) -> str:
        owner, name = helds[0].owner, helds[0].name
        recipe = self._recipes.get(key)
        if recipe is None:
            delattr(owner, name)
        else:
            now, before = getattr(owner, name), recipe()
            # Others may share the container: what is in it changes, it stays the same.
            if isinstance(now, list) and isinstance(before, list):
                now[:] = before
            elif isinstance(now, dict) and isinstance(before, dict):
                now.clear()
                now.update(before)
            else:
                setattr(owner, name, before)
        path = helds[0].path.partition("[")[0]
        size = format_bytes(sum(held.tensor.nbytes for held in helds))
        return f"{self._name}.{path}".lstrip(".") + f" ({len(helds)} tensors, {size})"

    def _recipe(self, value: Any, depth: int) -> Recipe:
        if isinstance(value, torch.Tensor) and value.device == self._device:
            ref = weakref.ref(value)
            self._known.append(ref)
            return ref
        if depth and isinstance(value, dict):
            pairs = [(key, self._recipe(item, depth - 1)) for key, item in value.items()]
            return lambda: {key: item() for key, item in pairs}
        if depth and isinstance(value, (list, tuple)):
            kind: Callable[[Any], Any] = list if isinstance(value, list) else tuple
            items = [self._recipe(item, depth - 1) for item in value]
            return lambda: kind(item() for item in items)
        if isinstance(value, (torch.Tensor, *_PLAIN)):
            return lambda: value
        try:
            return weakref.ref(value)  # an object of somebody's may hold tensors of its own
        except TypeError:
            return lambda: value
