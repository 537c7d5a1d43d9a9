"""Room on a second card: what streams is copied from there, where that is faster than the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from tightfit.card.base import Card
from tightfit.place.streaming.master import Master
from tightfit.plan.budget import Budget
from tightfit.plan.room import room_left
from tightfit.plan.streaming.replan import Drift
from tightfit.units import MIB

_CHUNK = 16 * MIB
"""Bytes that pass through the host at a time, of what lies in a file."""

Make = Callable[[], torch.Tensor]


class Annexe:
    """Copies of masters on another card, for one module that streams on its own.

    The masters on the host, or in their files, stay what they are: a copy here may be let go at any
    time when nothing is under way from it. Nothing of the other card is evicted, trimmed or waited
    for; what is taken there stays within its own budget.

    Attributes:
        card: the other one.
        first: before memory of the host that is held in place; else only instead of memory that
            is not.
    """

    def __init__(
        self,
        card: Card,
        budget: Callable[[], Budget],
        *,
        first: bool,
        unless_full: Callable[[Make], torch.Tensor | None],
        spare: int = 0,
    ) -> None:
        """Nothing is there yet.

        Args:
            budget: what may be used of the card now, with all that this process has there.
            unless_full: gives what it is asked to make, or None where the card has no room for it.
            spare: bytes of the budget that are left to whatever else is done there.
        """
        self.card = card
        self.first = first
        self._budget = budget
        self._unless_full = unless_full
        self._spare = spare
        self._there: dict[int, Master] = {}

    @property
    def bytes(self) -> int:
        """That lie here."""
        return sum(_size(master) for master in tuple(self._there.values()))

    @property
    def budget(self) -> Budget:
        """Of the card."""
        return self._budget()

    @property
    def room(self) -> int:
        """Bytes that may still come, by what its allocator may take for them."""
        drift, most = self._now()
        return drift.most_within(most)

    @property
    def capacity(self) -> int:
        """With those that are here."""
        return self.bytes + self.room

    @property
    def excess(self) -> int:
        """Bytes over the budget of the card, where that was lowered."""
        now, most = self.card.read(), self._budget().budget
        return max(0, (now.reserved or 0) - (most if now.limit is None else min(most, now.limit)))

    def park(self, master: Master) -> bool:
        """Copy `master` here, if there is room; whether it lies here.

        What is under way from a copy of it elsewhere goes on.
        """
        if master.parked is not None:
            return True
        drift, most = self._now()
        if not master.bytes or drift.reserved_with(master.bytes) > most:
            return False
        size, device = master.bytes, self.card.device
        buffer = self._unless_full(lambda: torch.empty(size, dtype=torch.uint8, device=device))
        if buffer is None:
            return False
        _fill(buffer, master)
        self._there[id(master)] = master
        master.parked = buffer
        return True

    def release(self, master: Master) -> bool:
        """Let its copy go, from which nothing is under way; whether there was one."""
        if self._there.pop(id(master), None) is None:
            return False
        master.parked = None
        return True

    def make_room(self, size: int, idle: Iterable[Master]) -> None:
        """Let copies of the `idle` ones go until `size` bytes may come."""
        for master in idle:
            if self.room >= size:
                return
            self.release(master)

    def close(self) -> None:
        """Let all go; harmless when repeated."""
        for master in tuple(self._there.values()):
            self.release(master)

    def _now(self) -> tuple[Drift, int]:
        """How its allocator stands, and what reserved may come to."""
        now, budget = self.card.read(), self._budget()
        reserved = now.reserved or 0
        more = room_left(
            budget=budget.budget if now.limit is None else min(budget.budget, now.limit),
            total=now.total,
            held=reserved,
            held_by_others=now.held_by_others or 0,
            context=now.context or 0,
            reserve=budget.reserve,
        )
        drift = Drift.at_first(
            self.card.allocator,
            allocated=now.allocated or 0,
            reserved=reserved,
            grain=self.card.grain,
        )
        return drift, reserved + max(0, more - self._spare)


def _size(master: Master) -> int:
    return 0 if master.parked is None else master.parked.nbytes


def _fill(buffer: torch.Tensor, master: Master) -> None:
    """It has arrived when this returns: the host waits for each part."""
    if master.whole is not None:
        buffer.copy_(master.whole)
        return
    part = torch.empty(min(_CHUNK, buffer.nbytes), dtype=torch.uint8)
    for start in range(0, buffer.nbytes, part.nbytes):
        piece = part[: buffer.nbytes - start]
        master.fill(piece, start)
        buffer[start : start + piece.nbytes].copy_(piece)
