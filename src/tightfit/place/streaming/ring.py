"""The ring: slots on the card that streamed weights pass through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tightfit.card.base import Card
from tightfit.card.lanes import Lane, Mark, Queue
from tightfit.errors import BooksError, UsageError
from tightfit.place.streaming.master import Master
from tightfit.place.streaming.succession import Succession
from tightfit.units import format_bytes


@dataclass(eq=False)
class Slot:
    """A fixed buffer on the card.

    Attributes:
        parts: its first bytes, by how many.
        views: for each master, its tensors in this slot.
        free: passed when nothing reads it any more.
        ready: passed when what it holds has arrived.
        holds: the master whose bytes are in it, or on the way; None while it is empty.
        users: who uses it now; while there is one, it keeps what it holds.
    """

    parts: dict[int, torch.Tensor]
    views: dict[Master, tuple[torch.Tensor, ...]]
    free: Mark
    ready: Mark | None = None
    holds: Master | None = None
    users: set[object] = field(default_factory=set)


@dataclass
class Copies:
    """What a ring did.

    Attributes:
        count: copies begun.
        bytes: of them.
        late: those that were begun only when they were needed.
        grown: slots made in mid-run, since all were in use at once.
    """

    count: int = 0
    bytes: int = 0
    late: int = 0
    grown: int = 0


class Ring:
    """Slots of one size, allocated once; what comes next is copied as soon as a slot is free.

    *Ready*: compute waits for the copy. *Free*: the next copy waits for compute. The host waits
    for neither. One thread at a time.
    """

    def __init__(
        self,
        card: Card,
        lane: Lane,
        compute: Queue,
        arenas: Sequence[Master],
        *,
        slots: int,
        compares: bool = False,
    ) -> None:
        """`arenas` are the masters that pass, in the order they are expected.

        Where it `compares`, the host waits for each copy and looks whether it is its master's.
        Raises `UsageError` for no slots, and what the card raises when it is full.
        """
        if slots < 1:
            raise UsageError(f"a ring of {slots} slots cannot stream; it takes at least 1.")
        self.copies = Copies()
        self._card = card
        self._lane = lane
        self._compute = compute
        self._arenas = tuple(arenas)
        self._coming = Succession(self._arenas)
        self._lingers: Slot | None = None
        self._compares = compares
        self.slot_bytes = max(arena.layout.bytes for arena in arenas)
        self._slots: list[Slot] = []
        for _ in range(min(slots, len(self._arenas))):
            self._grow()

    @property
    def bytes(self) -> int:
        """Of all slots."""
        return self.slot_bytes * len(self._slots)

    def is_full_for(self, arena: Master) -> bool:
        """Whether every slot is in use for another: taking `arena` would need one more."""
        return all(slot.users and slot.holds is not arena for slot in self._slots)

    def take(self, arena: Master, user: object) -> tuple[torch.Tensor, ...]:
        """The tensors of `arena` on the card, there when what is queued from now on runs.

        Has to be followed by `leave` with the same `user`, whatever happens. Raises `BooksError`
        where it compares and something else arrived.
        """
        slot = self._slot_of(arena)
        surprised = slot is None or self._lingers is not None
        self._lingers = None
        if slot is None:
            slot = self._victim()
            self.copies.late += 1
            self._fetch(slot, arena)
        slot.users.add(user)
        assert slot.ready is not None
        self._compute.wait(slot.ready)
        self._coming.saw(arena)
        if surprised:
            self.ahead()
        if self._compares:
            self._compare(slot, arena)
        return slot.views[arena]

    def leave(self, arena: Master, user: object, *, lingers: bool = False) -> bool:
        """The use of `arena` by `user` ends, if there was one; whether none is left.

        Its slot is filled anew at once; where it `lingers`, only when another is taken: it may be
        needed again soon.
        """
        slot = self._slot_of(arena)
        if slot is None or user not in slot.users:
            return slot is None or not slot.users
        if len(slot.users) == 1:
            slot.free = self._compute.mark(again=slot.free)
        slot.users.discard(user)
        if slot.users:
            return False
        if lingers:
            self._lingers = slot
        else:
            self.ahead()
        return True

    def ahead(self) -> None:
        """Begin to copy what comes next into the slots that are free."""
        lingers = self._lingers
        free = [slot for slot in self._slots if not slot.users and slot is not lingers]
        if not free:
            return
        count = len(free)
        missing: list[Master] = []
        for arena in self._coming.coming(len(self._slots) + 1):
            slot = self._slot_of(arena)
            if slot is None:
                missing.append(arena)
            elif slot in free:
                free.remove(slot)
            else:
                continue
            count -= 1
            if not count:
                break
        for arena in missing:
            self._fetch(free.pop(), arena)

    def close(self) -> None:
        """Drain what is under way, then let the slots go; the card has to be done with them."""
        self._lane.drain()
        self._lingers = None
        self._slots.clear()

    def _slot_of(self, arena: Master) -> Slot | None:
        for slot in self._slots:
            if slot.holds is arena:
                return slot
        return None

    def _victim(self) -> Slot:
        """A free slot: an empty one, or the one whose weights are needed last."""
        free = [slot for slot in self._slots if not slot.users]
        if not free:
            self.copies.grown += 1
            return self._grow()
        coming = self._coming.coming(len(self._arenas))
        when = {arena: at for at, arena in enumerate(coming)}
        never = len(self._arenas)
        return max(
            free,
            key=lambda slot: never + 1 if slot.holds is None else when.get(slot.holds, never),
        )

    def _fetch(self, slot: Slot, arena: Master) -> None:
        slot.holds = None  # whatever interrupts this, the slot never claims what it does not hold
        size = arena.layout.bytes
        self._lane.wait(slot.free)
        if size:
            arena.send(self._lane, slot.parts[size])
        slot.ready = self._lane.mark(again=slot.ready)
        slot.holds = arena
        self.copies.count += 1
        self.copies.bytes += size

    def _compare(self, slot: Slot, arena: Master) -> None:
        size = arena.layout.bytes
        arrived = slot.parts[size].cpu() if size else arena.buffer
        wrong = int((arrived != arena.buffer).sum())
        if wrong:
            raise BooksError(
                f"{wrong} of {size} bytes of streamed weights are not those of their master on "
                f"{self._card.name}: a copy was not waited for, or something wrote into the slot."
            )

    def _grow(self) -> Slot:
        with torch.inference_mode(False), torch.no_grad():
            buffer = torch.empty(self.slot_bytes, dtype=torch.uint8, device=self._card.device)
            views = {arena: arena.layout.views(buffer) for arena in self._arenas}
            parts = {arena.layout.bytes: buffer[: arena.layout.bytes] for arena in self._arenas}
            slot = Slot(parts, views, self._compute.mark())
        self._slots.append(slot)
        return slot

    def __repr__(self) -> str:
        return f"Ring({len(self._slots)} x {format_bytes(self.slot_bytes)})"
