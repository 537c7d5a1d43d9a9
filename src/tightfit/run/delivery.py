"""Where the result of a job goes as it comes, where it is not to lie in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import torch

from tightfit.card.lanes import Mark
from tightfit.place.lanes import under_way
from tightfit.units import MIB

_MOST, _BYTES = 16, 64 * MIB
"""Items, or frames of a clip, that are handed over together: on a card each part is copied."""


class Delivery(Protocol):
    """Takes the samples of a result in order, whichever rung makes them."""

    def begin(self) -> None:
        """A try starts: what was taken from an earlier one is void."""

    def take(self, samples: torch.Tensor) -> None:
        """The next samples on the host: items [n,C,…], or frames [1,C,t,H,W] of a clip."""

    def spool(self, size: int) -> Path | None:
        """A new file for `size` bytes that are gathered before they can be taken; None: memory."""


def hand_over(delivery: Delivery, values: torch.Tensor) -> torch.Tensor:
    """Give all of `values` [B,C,(T,)…] away, a few at a time; what is left is none of them."""
    for part in parts_of(values):
        delivery.take(part.to("cpu"))
    return torch.empty((0, *values.shape[1:]), dtype=values.dtype)


class Leaving:
    """Tensors on their way to the host, of which `tell` is given a copy each, in order.

    One is copied while the next is made: it is told when the next one comes, or at the `end`.
    Neither waits for more than that copy.
    """

    def __init__(self, tell: Callable[[torch.Tensor], None]) -> None:
        self._tell = tell
        self._waiting: tuple[torch.Tensor, Mark] | None = None

    def put(self, made: torch.Tensor) -> None:
        """One more, on a card or on the host."""
        before, self._waiting = self._waiting, under_way(made)
        self._arrived(before)

    def end(self) -> None:
        """All were put."""
        before, self._waiting = self._waiting, None
        self._arrived(before)

    def _arrived(self, one: tuple[torch.Tensor, Mark] | None) -> None:
        if one is not None:
            copy, arrived = one
            arrived.drain()
            self._tell(copy)


def parts_of(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """A few items, or a few frames of one clip, at a time."""
    if not values.numel():
        return
    if values.dim() != 5:
        yield from torch.split(values, _count(values, values.shape[0]))
        return
    for item in torch.split(values, 1):
        yield from torch.split(item, _count(item, item.shape[2]), dim=2)


def _count(values: torch.Tensor, units: int) -> int:
    return max(1, min(_MOST, _BYTES * units // values.nbytes))
