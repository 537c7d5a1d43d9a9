"""What tensors hold that Python's collector does not see: gradients, and what is kept for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import torch

_MOST_NODES = 2000


def tensors_in(values: Iterable[Any]) -> list[Any]:
    """Those that are tensors, by their real class."""
    return of_kinds(values, kinds_of(torch.Tensor))


def of_kinds(values: Iterable[Any], kinds: AbstractSet[Any]) -> list[Any]:
    """Those of exactly these classes: far faster than `isinstance`, of millions of objects."""
    return [each for each in values if type(each) in kinds]


def kinds_of(kind: Any) -> set[Any]:
    """A class, and all that derive from it."""
    return _kinds(kind, set())


def gradient(value: Any) -> torch.Tensor | None:
    """Of a tensor that has one; None for any other object."""
    if not issubclass(type(value), torch.Tensor):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        found: torch.Tensor | None = value.grad if value.is_leaf else None
    return found


def has_history(value: Any) -> bool:
    """Whether it is a tensor that operators made for which a way back is kept."""
    if not issubclass(type(value), torch.Tensor):
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return value.grad_fn is not None


def saved(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """What the operators behind `value` keep for the way back, of so many operators at most.

    These may be other objects than those that were computed with; their storages are the same.
    """
    waiting: list[Any] = [value.grad_fn]
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield from (each for each in _of_node(node) if isinstance(each, torch.Tensor))
        waiting += [each for each, _ in node.next_functions]


def _kinds(kind: Any, found: set[Any]) -> set[Any]:
    if kind not in found:
        found.add(kind)
        for each in type.__subclasses__(kind):
            _kinds(each, found)
    return found


def _of_node(node: Any) -> list[Any]:
    names = [name for name in dir(node) if name.startswith("_saved_")]
    values: list[Any] = []
    for name in (*names, "saved_tensors", "variable"):
        try:
            value = getattr(node, name, None)
        except RuntimeError:  # freed by a backward
            continue
        values += value if isinstance(value, (list, tuple)) else [value]
    return values
