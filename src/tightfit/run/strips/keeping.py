"""What is kept between stages: strips of values, on the card or on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tightfit.card.lanes import Lane, Mark, Queue
from tightfit.run.strips.part import Span


@dataclass
class Chunk:
    """Some rows of a value.

    Attributes:
        rows: which.
        tensor: them, as they were made; None where they lie on the host.
        host: them on the host, rows first.
        ready: passed when they have arrived there.
    """

    rows: Span
    tensor: torch.Tensor | None = None
    host: torch.Tensor | None = None
    ready: Mark | None = None


@dataclass(frozen=True)
class Order:
    """How a value lies on the host: rows first, channels last, so that a strip is one piece.

    Attributes:
        axes: of the value, in the order in which they lie there.
        back: the way back.
        axis: along which its rows lie.
        shape: of all of it.
        dtype: of it.
    """

    axes: tuple[int, ...]
    back: tuple[int, ...]
    axis: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, shape: Sequence[int], axis: int, dtype: torch.dtype) -> Order:
        """Channels are axis 1 of pictures and clips, and the last of anything else."""
        channels = [1] if len(shape) > 3 and axis != 1 else []
        axes = (axis, *(at for at in range(len(shape)) if at not in (axis, *channels)), *channels)
        back = tuple(axes.index(at) for at in range(len(shape)))
        return cls(axes, back, axis, tuple(shape), dtype)

    def lying(self, rows: int) -> tuple[int, ...]:
        """The shape of so many rows on the host."""
        return (rows, *(self.shape[at] for at in self.axes[1:]))

    def bytes(self, rows: int) -> int:
        """Of so many rows."""
        return torch.Size(self.lying(rows)).numel() * self.dtype.itemsize


class Slots:
    """Fixed buffers on the card that copies in one direction pass through, one after the other."""

    def __init__(self, memory: torch.Tensor, size: int, count: int) -> None:
        """`count` buffers of `size` bytes each, at the beginning of `memory`; none of no size."""
        starts = [size * at for at in range(count if size else 0)]
        self._buffers = [memory[start : start + size] for start in starts]
        self.free: list[Mark | None] = [None] * len(self._buffers)
        self._next = 0

    def __len__(self) -> int:
        return len(self._buffers)

    def turn(self) -> int:
        """The slot whose turn it is."""
        slot = self._next
        self._next = (slot + 1) % len(self._buffers)
        return slot

    def view(self, slot: int, order: Order, rows: int) -> torch.Tensor:
        """So many rows of a value in it."""
        size = order.bytes(rows)
        return self._buffers[slot][:size].view(order.dtype).view(order.lying(rows))

    def leave(self, queue: Queue) -> None:
        """`queue` waits until nothing is on its way any more; then others may have the bytes."""
        for mark in self.free:
            if mark is not None:
                queue.wait(mark)


@dataclass(frozen=True)
class Lanes:
    """The queues of a card that strips use."""

    compute: Queue
    up: Lane
    down: Lane
