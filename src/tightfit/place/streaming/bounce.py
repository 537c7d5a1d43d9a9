"""A few buffers that what cannot be copied to a card directly passes through on the host."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch

from tightfit.card.lanes import Lane, Mark, Queue
from tightfit.place.streaming.master import Source
from tightfit.place.streaming.memory import mapping
from tightfit.place.streaming.pinned import Pins, pages
from tightfit.units import MIB

COUNT = 4
"""One is filled and one is copied from; the others take up that neither is steady."""
MOST_BYTES = 16 * MIB
"""Of one: copies of this size reach the speed of the link."""
_LEAST = 2
_SHARE = 4


@dataclass
class _Buffer:
    """Memory, and the mark that is passed when nothing is copied from it any more."""

    memory: torch.Tensor
    free: Mark | None = None


class Bounce:
    """Buffers of one size, filled and copied from in turn. There are none until it is opened.

    Attributes:
        held: all of them are held in place; else whoever copies from one has to wait.
    """

    def __init__(self, pins: Pins, marks: Queue) -> None:
        """`pins` are asked to hold the buffers, two at least or none.

        `marks` is the queue beneath all others that copies go to: who watches those sees no marks.
        """
        self.held = False
        self._marks = marks
        self._pins = pins
        self._memory: list[torch.Tensor] = []
        self._buffers: list[_Buffer] = []
        self._turn = 0

    @property
    def bytes(self) -> int:
        """Of all buffers."""
        return sum(each.memory.nbytes for each in self._buffers)

    def open(self, size: int) -> None:
        """`COUNT` buffers of `size` bytes each, or as many as are held; harmless when repeated."""
        if self._buffers:
            return
        self._memory = [mapping(size) for _ in range(COUNT)]
        held = [each for each in self._memory if self._pins.hold(each)]
        self.held = len(held) >= _LEAST
        for memory in () if self.held else held:
            self._pins.release(memory)
        self._buffers = [_Buffer(each) for each in (held if self.held else self._memory)]

    def pour(self, lane: Lane, target: torch.Tensor, source: Source, start: int) -> int:
        """Queue a copy of the bytes of `source` from `start` on; where the next one starts.

        Waits until the buffer whose turn it is may be filled anew.
        """
        each = self._buffers[self._turn]
        self._turn = (self._turn + 1) % len(self._buffers)
        if each.free is not None:
            each.free.drain()
        end = min(target.nbytes, start + each.memory.nbytes)
        part = each.memory[: end - start]
        source.fill(part, start)
        try:
            lane.copy(target[start:end], part)
        finally:
            each.free = self._marks.mark(again=each.free)
        return end

    def close(self) -> None:
        """Let the memory go; what was copied from it has to have arrived."""
        self.held = False
        for memory in self._memory:
            self._pins.release(memory)
        self._buffers.clear()
        self._memory.clear()


def buffer_size(budget: int, largest: int) -> int:
    """Bytes of one buffer, where `budget` may be pinned and masters have up to `largest` bytes.

    All together take a quarter of the budget at most; what is too little for that is not pinned.
    """
    most = min(MOST_BYTES, pages(max(1, largest)))
    return min(most, budget // (_SHARE * COUNT)) // mmap.PAGESIZE * mmap.PAGESIZE or most
