"""Lanes of a virtual card: at once, or as late as a real device may be; see `Faults.lanes`.

With the switch on, the bytes of a copy arrive when somebody waits for them and are NaN until then;
a wait that is missing is a hazard, counted in `VirtualCard.hazards`:

- compute uses bytes of a copy that it did not wait for: what it works out of them is NaN;
- a copy goes over bytes that compute may still use: what compute worked out since is NaN, as far as
  it is still alive on the card;
- two lanes copy to the same bytes; memory is freed under a copy; the source of a copy is freed or
  written to before the copy is done: the copy never arrives.

Copies back likewise: their bytes are NaN on the host until the host waits, or until a lane that
waited for them copies on from there, and stay so where a wait was missing:

- a lane copies back what compute, or another lane, may still be writing;
- compute, or another lane, writes over bytes that may still be copied back, or they are freed;
- a lane copies from, or back to, bytes of the host that another one may still be at work in;
- the host writes to them, or lets them go, before the copy is done.

Limits: a host that reads too early sees NaN, and nobody tells. Bytes of the host are watched card
by card. all threads share the one compute queue, and a host that waits orders all that any thread
queues later. Gaps of a strided view count as used. The last use of each span is kept, so that a
hazard spoils what came after that one. Copies that no lane makes go through the compute queue. Only
floating results are spoilt afterwards. Turn the switch on before the memory in question is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tightfit.card.lanes import Lane, Mark, Queue, check_copy, check_copy_back, check_copy_peer
from tightfit.card.virtual.clocks import Clock
from tightfit.card.virtual.tensor import VirtualTensor

if TYPE_CHECKING:
    from tightfit.card.virtual.card import VirtualCard


class VirtualMark(Mark):
    """A point in a queue of a virtual card.

    Attributes:
        clock: what is done when it is passed.
        frees: how many delayed frees of the card count then.
    """

    __slots__ = ("_card", "clock", "frees")

    def __init__(self, card: VirtualCard, clock: Clock, frees: int) -> None:
        self._card = card
        self.clock = clock
        self.frees = frees

    def drain(self) -> None:
        """One of the waits in `VirtualCard.syncs`."""
        self._card.await_point(self.clock, self.frees)


class VirtualQueue(Queue):
    """The compute queue of a virtual card."""

    def __init__(self, card: VirtualCard) -> None:
        self._card = card
        self._line = card.traffic.compute

    def mark(self, *, again: Mark | None = None) -> Mark:
        """The point after the operators, and the frees, so far."""
        return self._mark(again, self._card.frees)

    def wait(self, mark: Mark) -> None:
        """What the lanes were given before the mark arrives, where this is the compute queue."""
        if not isinstance(mark, VirtualMark):
            raise TypeError(f"a queue of a virtual card cannot wait for a {type(mark).__name__}")
        self._card.traffic.wait(self._line, mark.clock)

    def _mark(self, again: Mark | None, frees: int) -> Mark:
        clock = self._card.traffic.mark(self._line)
        if not isinstance(again, VirtualMark):
            return VirtualMark(self._card, clock, frees)
        again._card, again.clock, again.frees = self._card, clock, frees
        return again


class VirtualLane(VirtualQueue, Lane):
    """A queue of copies to and from a virtual card."""

    def __init__(self, card: VirtualCard) -> None:
        super().__init__(card)
        self._line = card.traffic.open()

    def mark(self, *, again: Mark | None = None) -> Mark:
        """The point after the copies so far."""
        return self._mark(again, 0)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """At once, or poison until it arrives. Raises `JobFailed` for a hazard in strict mode."""
        check_copy(target, source, self._card.device)
        assert isinstance(target, VirtualTensor)
        self._copy(target, source)

    def copy_peer(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """As from the host: what lies on another virtual card is host memory, too."""
        check_copy_peer(target, source, self._card.device)
        assert isinstance(target, VirtualTensor)
        assert isinstance(source, VirtualTensor)
        self._copy(target, source.payload)

    def copy_back(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """At once, or poison until it arrives. Raises `JobFailed` for a hazard in strict mode."""
        check_copy_back(target, source, self._card.device)
        assert isinstance(source, VirtualTensor)
        traffic = self._card.traffic
        if traffic.on:
            traffic.copies_back(self._line, target, source)
        else:
            with torch.inference_mode():
                target.copy_(source.payload)

    def drain(self) -> None:
        """One of the waits in `VirtualCard.syncs`."""
        self._card.await_point(self._card.traffic.mark(self._line), 0)

    def _copy(self, target: VirtualTensor, source: torch.Tensor) -> None:
        traffic = self._card.traffic
        if traffic.on:
            traffic.copies(self._line, target, source)
        else:
            with torch.inference_mode():
                target.payload.copy_(source)
