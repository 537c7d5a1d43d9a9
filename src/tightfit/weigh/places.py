"""What a module holds, found again by the storage that a tensor looks at."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import nn

from tightfit.weigh.packed import data_parts
from tightfit.weigh.tally import extent
from tightfit.weigh.tensors import Held, Kind, walk


class Places:
    """Finds what a module holds by the storage that an argument looks at."""

    def __init__(self, module: nn.Module) -> None:
        self._helds = [held for held in walk(module) if not held.recomputed]
        self._ties: dict[Any, list[Held]] = {}
        self._by_object: dict[int, list[Held]] = {}
        self._by_storage: dict[Any, dict[tuple[int, int], list[Held]]] = {}
        for held in sorted(self._helds, key=lambda held: held.kind is Kind.ATTRIBUTE):
            spans = tuple(extent(part) for part in data_parts(held.tensor))
            ties = self._ties.setdefault(spans or id(held.tensor), [])
            ties.append(held)
            self._by_object[id(held.tensor)] = ties
            for storage, start, end in spans:
                self._by_storage.setdefault(storage, {})[start, end] = ties

    def of(self, tensor: torch.Tensor) -> list[list[Held]]:
        """What `tensor` is, or looks at: all places of each such tensor, the holder first."""
        ties = self._by_object.get(id(tensor))
        if ties is not None:
            return [ties]
        found = {}
        for part in data_parts(tensor):
            storage, start, end = extent(part)
            for (first, last), ties in self._by_storage.get(storage, {}).items():
                if first < end and start < last:
                    found[id(ties)] = ties
        return list(found.values())

    def without(self, used: Container[str]) -> tuple[str, ...]:
        """Paths of what was not used in any of its places."""
        return tuple(
            held.path
            for held in self._helds
            if not any(tie.path in used for tie in self._by_object[id(held.tensor)])
        )
