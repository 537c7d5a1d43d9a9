"""Masters in memory: the weights that move as one, side by side in one buffer of our own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tightfit.card.lanes import Lane
from tightfit.place.streaming.layout import ALIGNMENT, Layout, Place
from tightfit.place.streaming.master import Master
from tightfit.place.streaming.memory import mapping
from tightfit.place.streaming.stage import Stage

__all__ = ["ALIGNMENT", "Arena", "Layout", "Place"]


class Arena(Master):
    """The master of weights that move as one.

    Attributes:
        layout: where each tensor lies.
        views: the tensors in the buffer.
        pinned: the driver holds the buffer in place.
        at_once: a copy from it keeps nobody waiting: it is pinned, or the card does not mind.
    """

    def __init__(self, layout: Layout, tensors: Sequence[torch.Tensor]) -> None:
        """Take copies of `tensors`, for which `layout` was made."""
        self.layout = layout
        self.whole = self._buffer = mapping(layout.bytes)
        self.views = layout.views(self._buffer)
        self.pinned = False
        self.at_once = True
        for view, tensor in zip(self.views, tensors, strict=True):
            view.copy_(tensor)

    @property
    def buffer(self) -> torch.Tensor:
        """All bytes, an anonymous mapping that goes when the last view of it is gone."""
        return self._buffer

    def send(self, lane: Lane, target: torch.Tensor) -> None:
        """From where they lie; a stage copies for others what would keep them waiting."""
        if self.at_once or not isinstance(lane, Stage):
            lane.copy(target, self._buffer)
        else:
            lane.pour(target, self)

    def fill(self, target: torch.Tensor, start: int) -> None:
        """From memory."""
        target.copy_(self._buffer[start : start + target.nbytes])
