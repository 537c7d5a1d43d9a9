"""Masters in memory: the weights that move as one, side by side in one buffer of our own."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from weakref import WeakValueDictionary

import torch

from tightfit.card.lanes import Lane
from tightfit.place.streaming.layout import ALIGNMENT, Layout, Place
from tightfit.place.streaming.master import Master
from tightfit.place.streaming.memory import mapping
from tightfit.place.streaming.stage import Stage

__all__ = ["ALIGNMENT", "Arena", "Layout", "Place"]


class Shared:
    """Memory for weights that are the same bytes of the same files, however often they are loaded.

    It is there as long as somebody has it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffer: torch.Tensor | None = None

    @classmethod
    def of(cls, origin: Hashable) -> Shared:
        """The same one for everybody who says the same `origin`: a layout, and where bytes are."""
        with _guard:
            found = _known.get(origin)
            if found is None:
                found = _known[origin] = cls()
            return found

    def filled(self, layout: Layout, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The memory; the first who asks fills it."""
        with self._lock:
            if self._buffer is None:
                self._buffer = _filled(layout, tensors)
            return self._buffer


_known: WeakValueDictionary[Hashable, Shared] = WeakValueDictionary()
_guard = threading.Lock()


def _filled(layout: Layout, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    buffer = mapping(layout.bytes)
    for view, tensor in zip(layout.views(buffer), tensors, strict=True):
        view.copy_(tensor)
    return buffer


class Arena(Master):
    """The master of weights that move as one.

    Attributes:
        layout: where each tensor lies.
        views: the tensors in the buffer.
        pinned: the driver holds the buffer in place.
        at_once: a copy from it keeps nobody waiting: it is pinned, or the card does not mind.
    """

    def __init__(
        self, layout: Layout, tensors: Sequence[torch.Tensor], *, shared: Shared | None = None
    ) -> None:
        """Take copies of `tensors`, for which `layout` was made; once for all of a `shared`."""
        self.layout = layout
        self._memory = shared
        self.shared = shared is not None
        buffer = _filled(layout, tensors) if shared is None else shared.filled(layout, tensors)
        self.whole = self._buffer = buffer
        self.views = layout.views(self._buffer)
        self.pinned = False
        self.at_once = True

    @property
    def buffer(self) -> torch.Tensor:
        """All bytes, an anonymous mapping that goes when the last view of it is gone."""
        return self._buffer

    def send_from_host(self, lane: Lane, target: torch.Tensor) -> None:
        """From where they lie; a stage copies for others what would keep them waiting."""
        if self.at_once or not isinstance(lane, Stage):
            lane.copy(target, self._buffer)
        else:
            lane.pour(target, self)

    def fill(self, target: torch.Tensor, start: int) -> None:
        """From memory."""
        target.copy_(self._buffer[start : start + target.nbytes])
