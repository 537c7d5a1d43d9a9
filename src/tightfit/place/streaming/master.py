"""Where streamed weights are read from: in memory of our own, or in the files they came from."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from tightfit.card.lanes import Lane
from tightfit.place.packing.packed import Packed
from tightfit.place.streaming.layout import Layout


class Source(ABC):
    """Bytes on the host that can be read in any pieces.

    Attributes:
        whole: all of them side by side in memory, if that is how they lie.
    """

    whole: torch.Tensor | None = None

    @abstractmethod
    def fill(self, target: torch.Tensor, start: int) -> None:
        """Write as many bytes from `start` on into `target`, bytes on the host, as it has room for.

        Raises `InputError` where they are in a file that is not what it was.
        """


class Master(Source):
    """The true values of weights that move as one; nothing is ever copied back to them.

    Attributes:
        layout: where each tensor lies when it is used.
        views: the tensors on the host; none where they are packed.
        pinned: the driver holds all bytes in place.
        packed: how the bytes become tensors; None is that they are used as they lie.
        shared: other sessions read the same memory, so nobody may write to it: tensors stay where
            they were.
        parked: a copy of all bytes on another card, that is copied from instead; see `Annexe`.
        lives_parked: it was made for that, and is slow without.
    """

    layout: Layout
    views: tuple[torch.Tensor, ...]
    pinned: bool = False
    packed: Packed | None = None
    shared: bool = False
    parked: torch.Tensor | None = None
    lives_parked: bool = False

    @property
    def bytes(self) -> int:
        """That are copied for one use, and that a slot needs."""
        return self.layout.bytes if self.packed is None else self.packed.stored

    @property
    @abstractmethod
    def buffer(self) -> torch.Tensor:
        """All bytes as they lie in a slot, on the host."""

    def send(self, lane: Lane, target: torch.Tensor) -> None:
        """Queue the copy of all bytes to `target`, on the card, from another card or the host.

        The host goes on at once, unless the lane has nobody else to read or copy for it.
        """
        if self.parked is None:
            self.send_from_host(lane, target)
        else:
            lane.copy_peer(target, self.parked)

    @abstractmethod
    def send_from_host(self, lane: Lane, target: torch.Tensor) -> None:
        """As `send`, from the host."""
