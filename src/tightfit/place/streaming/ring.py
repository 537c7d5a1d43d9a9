"""The ring: memory on the card that streamed weights pass through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from tightfit.card.base import Card
from tightfit.card.lanes import Lane, Mark, Queue
from tightfit.errors import BooksError, UsageError
from tightfit.place.streaming.berths import laps_of, slot_of
from tightfit.place.streaming.master import Master
from tightfit.place.streaming.scratch import Scratch
from tightfit.place.streaming.succession import Succession
from tightfit.units import format_bytes

_MOST_AHEAD = 32
"""Masters that are looked at to see which come next."""


@dataclass(eq=False)
class Berth:
    """A place in the ring's memory that one master can lie in.

    Attributes:
        arena: that master.
        start, end: its bytes, counted through all the memory there is.
        part: those bytes on the card.
        views: the tensors of `arena` in them; none where it is packed.
        free: passed when nothing reads it any more; None until it was used.
        ready: passed when what it holds has arrived.
        users: who uses it now; while there is one, it keeps what it holds.
        waits: what it holds was not used yet.
    """

    arena: Master
    start: int
    end: int
    part: torch.Tensor
    views: tuple[torch.Tensor, ...]
    free: Mark | None = None
    ready: Mark | None = None
    users: set[object] = field(default_factory=set)
    waits: bool = False


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
    """A fixed number of bytes, allocated once; what comes next is copied as soon as it finds room.

    *Ready*: compute waits for the copy. *Free*: a copy waits for compute to be done with the bytes
    that it overwrites. The host waits for neither. One thread at a time.
    """

    def __init__(
        self,
        card: Card,
        lane: Lane,
        compute: Queue,
        arenas: Sequence[Master],
        *,
        slots: int,
        scratch: Scratch | None = None,
        compares: bool = False,
    ) -> None:
        """`arenas` are the masters that pass, in the order they are expected.

        There is room for `slots` of the largest. What is packed is unpacked into `scratch`, and its
        bytes here are free then. Where it `compares`, the host waits for each copy
        and looks whether it is its master's. Raises `UsageError` for no slots, and what the card
        raises when it is full.
        """
        if slots < 1:
            raise UsageError(f"a ring of {slots} slots cannot stream; it takes at least 1.")
        self.copies = Copies()
        self._card = card
        self._lane = lane
        self._compute = compute
        self._arenas = tuple(arenas)
        self._coming = Succession(self._arenas)
        self._lingers: Berth | None = None
        self._blocks: Berth | None = None
        self._scratch = scratch
        self._compares = compares
        sizes = [arena.bytes for arena in arenas]
        slots = min(slots, len(sizes))
        self.slot_bytes = slot_of(sizes)
        laps = laps_of(sizes, slots)
        self._starts = {arena: [lap[at] for lap in laps] for at, arena in enumerate(self._arenas)}
        self._lap = dict.fromkeys(self._arenas, 0)
        self._berths: dict[tuple[Master, int], Berth] = {}
        self._there: dict[Master, Berth] = {}
        self._buffers: list[torch.Tensor] = []
        self._slots = slots
        self._allocate(self.slot_bytes * slots)

    @property
    def bytes(self) -> int:
        """Of its memory."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def is_full_for(self, arena: Master) -> bool:
        """Whether so much is in use for others that taking `arena` would need one slot more."""
        if arena.packed is not None and self._unpacked.is_full_for(arena):
            return True
        return arena not in self._there and self._free_berth(arena) is None

    def take(self, arena: Master, user: object) -> tuple[torch.Tensor, ...]:
        """The tensors of `arena` on the card, there when what is queued from now on runs.

        Has to be followed by `leave` with the same `user`, whatever happens. Raises `BooksError`
        where it compares and something else arrived.
        """
        if arena.packed is not None and self._unpacked.holds(arena):
            return self._unpacked.take(arena, None, user)
        berth = self._there.get(arena)
        surprised = berth is None or self._lingers is not None
        self._lingers = None
        if surprised:
            self._blocks = None
        if berth is None:
            berth = self._free_berth(arena) or self._grow(arena)
            self.copies.late += 1
            self._fetch(berth)
        if arena.packed is None:
            berth.users.add(user)
        berth.waits = False
        assert berth.ready is not None
        self._compute.wait(berth.ready)
        self._coming.saw(arena)
        if arena.packed is not None:
            return self._unpack(berth, user)
        if surprised:
            self.ahead()
        if self._compares:
            self._compare(berth)
        return berth.views

    def leave(self, arena: Master, user: object, *, lingers: bool = False) -> bool:
        """The use of `arena` by `user` ends, if there was one; whether none is left.

        Its bytes are filled anew at once; where it `lingers`, only when another is taken: it may
        be needed again soon.
        """
        if arena.packed is not None:
            return self._unpacked.leave(arena, user)
        berth = self._there.get(arena)
        if berth is None or user not in berth.users:
            return berth is None or not berth.users
        if len(berth.users) == 1:
            berth.free = self._compute.mark(again=berth.free)
        berth.users.discard(user)
        if berth.users:
            return False
        if lingers:
            self._lingers = berth
        else:
            self.ahead()
        return True

    def ahead(self) -> None:
        """Begin to copy what comes next, in order, as far as there is room for it."""
        blocks = self._blocks
        if blocks is not None and (blocks.users or blocks.waits):
            return  # as it was found the last time
        self._blocks = None
        needed: list[Berth] = [] if self._lingers is None else [self._lingers]
        for arena in self._coming.coming(min(len(self._arenas), _MOST_AHEAD)):
            berth = self._there.get(arena)
            if berth is None:
                berth = self._berth(arena, self._starts[arena][self._lap[arena]])
                for other in self._under(berth):
                    if other.users or other in needed:
                        self._blocks = other
                        return
                self._fetch(berth)
            needed.append(berth)

    def close(self) -> None:
        """Drain what is under way, then let the memory go; the card has to be done with it."""
        self._lane.drain()
        self._lingers = self._blocks = None
        self._there.clear()
        self._berths.clear()
        self._buffers.clear()

    @property
    def _unpacked(self) -> Scratch:
        assert self._scratch is not None
        return self._scratch

    def _unpack(self, berth: Berth, user: object) -> tuple[torch.Tensor, ...]:
        """The tensors of what arrived; the next can be copied to where it lies."""
        if self._compares:
            self._compare(berth)
        try:
            views = self._unpacked.take(berth.arena, berth.part, user)
        finally:  # what was queued before it failed reads there, too
            berth.free = self._compute.mark(again=berth.free)
        self.ahead()
        return views

    def _under(self, berth: Berth) -> list[Berth]:
        """What lies where `berth` is."""
        start, end = berth.start, berth.end
        return [each for each in self._there.values() if each.start < end and start < each.end]

    def _free_berth(self, arena: Master) -> Berth | None:
        """Where `arena` can be at once: what it overwrites is not in use, and needed late."""
        coming = self._coming.coming(min(len(self._arenas), _MOST_AHEAD))
        when = {each: at for at, each in enumerate(coming)}
        best: Berth | None = None
        latest = -1
        for start in self._candidates(arena):
            berth = self._berth(arena, start)
            under = self._under(berth)
            if any(each.users for each in under):
                continue
            soonest = min((when.get(each.arena, _MOST_AHEAD) for each in under), default=2**31)
            if soonest > latest:
                best, latest = berth, soonest
        return best

    def _candidates(self, arena: Master) -> Iterator[int]:
        starts = self._starts[arena]
        lap = self._lap[arena]
        yield from dict.fromkeys((*starts[lap:], *starts[:lap], *self._slot_starts()))

    def _slot_starts(self) -> range:
        return range(0, self.bytes, self.slot_bytes)

    def _fetch(self, berth: Berth) -> None:
        """Whatever interrupts this: what is there never claims bytes that it does not hold."""
        arena = berth.arena
        size = arena.bytes
        waited = False
        for other in self._under(berth):
            if other.free is not None:
                self._lane.wait(other.free)
                waited = True
            del self._there[other.arena]
        if not waited:
            self._lane.wait(self._fresh)
        if size:
            arena.send(self._lane, berth.part)
        berth.ready = self._lane.mark(again=berth.ready)
        berth.waits = True
        self._there[arena] = berth
        self._lap[arena] = (self._lap[arena] + 1) % len(self._starts[arena])
        self.copies.count += 1
        self.copies.bytes += size

    def _compare(self, berth: Berth) -> None:
        buffer, size = berth.arena.buffer, berth.arena.bytes
        arrived = berth.part.cpu() if size else buffer
        wrong = int((arrived != buffer).sum())
        if wrong:
            raise BooksError(
                f"{wrong} of {size} bytes of streamed weights are not those of their master on "
                f"{self._card.name}: a copy was not waited for, or something wrote into the slot."
            )

    def _berth(self, arena: Master, start: int) -> Berth:
        """Made when it is first wanted; from then on it is the same."""
        found = self._berths.get((arena, start))
        if found is None:
            size = arena.bytes
            buffer, base = self._memory(start)
            with torch.inference_mode(False), torch.no_grad():
                part = buffer[start - base : start - base + size]
                views = arena.layout.views(part) if arena.packed is None else ()
                found = Berth(arena, start, start + size, part, views)
            self._berths[arena, start] = found
        return found

    def _memory(self, start: int) -> tuple[torch.Tensor, int]:
        base = 0
        for buffer in self._buffers:
            if start < base + buffer.nbytes:
                return buffer, base
            base += buffer.nbytes
        return self._buffers[-1], base - self._buffers[-1].nbytes

    def _grow(self, arena: Master) -> Berth:
        """One slot more, for what is in use at once against what was foreseen."""
        start = self.bytes
        self._allocate(self.slot_bytes)
        self.copies.grown += 1
        return self._berth(arena, start)

    def _allocate(self, size: int) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self._buffers.append(torch.empty(size, dtype=torch.uint8, device=self._card.device))
        self._fresh = self._compute.mark()

    def __repr__(self) -> str:
        return f"Ring({self._slots} x {format_bytes(self.slot_bytes)})"
