"""While resident weights are placed: what the allocator takes beyond them is watched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from tightfit.card.base import Card
from tightfit.errors import MemoryShortage
from tightfit.plan.streaming.pieces import Piece
from tightfit.plan.streaming.replan import Drift, replan
from tightfit.plan.streaming.residency import Residency
from tightfit.units import MIB, format_bytes

_LOOK_AFTER = MIB
"""Bytes placed after which the card is read again; until then they count as foreseen."""
_SLOTS = 2
"""Of a ring that the plan did not have."""


@dataclass(frozen=True)
class Replanned:
    """One change of plan in the middle of placing.

    Attributes:
        allocated, reserved: what was seen on the card, in bytes.
        room: what reserved may come to.
        gone: pieces that were to stay and are streamed instead.
    """

    allocated: int
    reserved: int
    room: int
    gone: tuple[str, ...]


class Watch:
    """Reserved and allocated, seen again and again against a room."""

    def __init__(self, card: Card, room: int) -> None:
        """`room` is what reserved may come to, with all that the process holds on the card."""
        self._card = card
        self._room = room
        self._since = 0
        reading = card.read()
        self._drift = Drift.at_first(
            card.allocator,
            allocated=reading.allocated or 0,
            reserved=reading.reserved or 0,
            grain=card.grain,
        )

    def placed(self, size: int) -> None:
        """So many bytes were put on the card."""
        self._since += size
        if self._since >= _LOOK_AFTER:
            self.look()

    def look(self) -> None:
        """Read the card; where it does not tell, nothing is learnt.

        Raises `MemoryShortage` where the room was passed all the same.
        """
        reading = self._card.read()
        if reading.allocated is None or reading.reserved is None:
            return
        self._drift = self._drift.after(allocated=reading.allocated, reserved=reading.reserved)
        self._since = 0
        if reading.reserved > self._room:
            raise self._shortage("were")

    def has_room_for(self, size: int) -> bool:
        """Whether reserved stays within the room with so many bytes more."""
        if self._drift.reserved_with(self._since + size) <= self._room:
            return True
        self.look()
        return self._drift.reserved_with(self._since + size) <= self._room

    def replan(
        self, residency: Residency, waiting: Sequence[Piece]
    ) -> tuple[Residency, Replanned] | None:
        """What else can be done with the pieces that wait, and what came of it.

        None is that nothing more can go: it may fit all the same, between what is there. Raises
        `MemoryShortage` where it cannot even then.
        """
        drift = self._drift
        found = replan(
            waiting,
            drift,
            room=self._room,
            ring=residency.ring,
            slots=residency.ring.slots or _SLOTS,
        )
        if found is None:
            if drift.allocated + sum(piece.bytes for piece in waiting) > self._room:
                raise self._shortage("are")
            return None
        gone = {piece.name for piece in found.streamed}
        if not gone:
            return None
        stays = tuple(
            stay and piece.name not in gone
            for piece, stay in zip(residency.pieces, residency.stays, strict=True)
        )
        names = tuple(piece.name for piece in waiting if piece.name in gone)
        told = Replanned(drift.allocated, drift.reserved, self._room, names)
        return replace(residency, stays=stays, ring=found.ring), told

    def _shortage(self, tense: str) -> MemoryShortage:
        drift = self._drift
        return MemoryShortage(
            "Not enough memory to place the weights.",
            figures=(
                f"{format_bytes(drift.reserved)} are reserved on {self._card.name} for "
                f"{format_bytes(drift.allocated)} in use, and more are to be placed; "
                f"{format_bytes(self._room)} may be."
            ),
            tried=(f"streaming what {tense} not placed yet",),
            advice="a larger budget, or a plan that streams more from the start",
        )


class Hold:
    """Bytes on the card that are meant for something later, such as the slots of a ring."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._buffers: list[torch.Tensor] = []

    def fit(self, sizes: Iterable[int]) -> None:
        """Hold one buffer of each of these sizes, and no others."""
        wanted = [size for size in sizes if size]
        if wanted == [buffer.nbytes for buffer in self._buffers]:
            return
        if self._buffers:
            self.release()
            self._card.trim()  # other sizes would not find what these leave in the cache
        for size in wanted:
            self._buffers.append(torch.empty(size, dtype=torch.uint8, device=self._card.device))

    def release(self) -> None:
        """Let all go: what takes as many bytes next finds them."""
        if self._buffers:
            self._buffers.clear()
            self._card.sync()
