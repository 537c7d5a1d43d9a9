"""What is handed over between cards: to a network that is on another one than its pipeline."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tightfit.errors import MemoryShortage
from tightfit.run.ladder.refused import unless_full


def other_card(given: object, device: torch.device) -> torch.device | None:
    """The card that tensors of `given` lie on, if that is another one than `device`.

    What lies on the host, or on the meta device, is nobody's.
    """
    found = (leaf.device for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor))
    return next((each for each in found if each.type == device.type and each != device), None)


def to_host(given: Any, card: torch.device) -> Any:
    """The same with what lies on `card` on the host, from where it is brought like any input."""
    return _moved(given, card, torch.device("cpu"))


def handed(
    value: Any,
    before: torch.device,
    after: torch.device,
    *,
    makes_room: Callable[[], int] | None = None,
) -> Any:
    """The same with what lies on the card `before` on the card `after`; each tensor once.

    An object that is no container but has such tensors, such as a posterior, is one of its kind
    with others. Where the card is full, `makes_room` there frees something, and says how many
    bytes. Raises `MemoryShortage` where it cannot.
    """
    while True:
        found = unless_full(lambda: [_moved(value, before, after, objects=True)])
        if found is not None:
            return found[0]
        if makes_room is None or not makes_room():
            raise MemoryShortage(
                f"Not enough memory on {after} for what a network on {before} hands over.",
                tried=["letting idle networks rest"] if makes_room is not None else [],
                advice="a larger budget, or this network on the same card",
            )


def _moved(value: Any, before: torch.device, after: torch.device, *, objects: bool = False) -> Any:
    return tree_map(_Mover(before, after, objects=objects).move, value)


class _Mover:
    """Moves tensors of one card, each once. (A function that called itself would keep them.)"""

    def __init__(self, before: torch.device, after: torch.device, *, objects: bool) -> None:
        self._before, self._after, self._objects = before, after, objects
        self._known: dict[int, torch.Tensor] = {}

    def move(self, leaf: Any) -> Any:
        """A leaf as it is on the other card."""
        if self._is_there(leaf):
            if id(leaf) not in self._known:
                self._known[id(leaf)] = leaf.to(self._after)
            return self._known[id(leaf)]
        inside = getattr(leaf, "__dict__", None)
        if self._objects and isinstance(inside, dict) and any(map(self._is_there, inside.values())):
            leaf = copy.copy(leaf)
            vars(leaf).update({name: self.move(each) for name, each in inside.items()})
        return leaf

    def _is_there(self, leaf: object) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.device == self._before
