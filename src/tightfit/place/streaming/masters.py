"""Who decides where masters are: on another card, pinned, in memory, or in their files."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from tightfit.card.base import Card
from tightfit.card.host_memory import read_host_memory
from tightfit.card.lanes import Lane, Queue
from tightfit.errors import MemoryShortage
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.streaming.annexe import Annexe
from tightfit.place.streaming.arena import Arena, Shared
from tightfit.place.streaming.bounce import COUNT, Bounce, buffer_size
from tightfit.place.streaming.evenly import evenly
from tightfit.place.streaming.filed import Filed
from tightfit.place.streaming.files import Files, Stretch
from tightfit.place.streaming.host_budget import host_room
from tightfit.place.streaming.layout import Layout, Place
from tightfit.place.streaming.master import Master
from tightfit.place.streaming.pinned import Pins, pages
from tightfit.place.streaming.stage import Stage, StagedQueue
from tightfit.units import format_bytes

_AT_ONCE = 4
"""Masters that are packed at the same time: fresh pages are what takes the time."""


@dataclass(frozen=True, eq=False)
class Wish:
    """Tensors on the host that are to move as one.

    Attributes:
        layout: of them.
        tensors: in its order.
    """

    layout: Layout
    tensors: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> Wish:
        """With a layout of their own."""
        return cls(Layout.of(tensors), tuple(tensors))

    @property
    def key(self) -> tuple[tuple[int, int], ...]:
        """Where they lie."""
        return tuple((tensor.data_ptr(), tensor.nbytes) for tensor in self.tensors)


class Masters:
    """The host's side of one session: memory for masters within a room, pins within a budget.

    Attributes:
        lane, compute: the queues of the card, to be used together. Where a copy would keep its
            caller waiting, a worker of the lane makes it.
        pins: what holds masters in place.
        annexe: room on another card for copies of them; None is none.
    """

    def __init__(
        self,
        card: Card,
        *,
        pins: Pins | None = None,
        room: int | None = None,
        shares: bool = False,
        annexe: Annexe | None = None,
        through: Callable[[Lane, Queue], tuple[Lane, Queue]] = lambda *queues: queues,
    ) -> None:
        """Nothing is taken yet.

        Args:
            card: what masters are copied to.
            pins: None is none.
            room: how many bytes masters may newly take; None is what the host has to give.
            shares: weights that are the same bytes of the same files have one master in all
                sessions that share. Their tensors stay mapped from the files.
            annexe: where what streams has copies; it is empty again when this closes.
            through: wraps the queues of the card, for those who watch them.
        """
        self.pins = Pins.none() if pins is None else pins
        self.annexe = annexe
        own = open_lane(card)
        self._bounce = Bounce(self.pins, own)
        lane, compute = through(own, compute_of(card))
        self.lane = Stage(lane, self._bounce)
        self.compute = StagedQueue(compute)
        self._there: weakref.WeakSet[Master] = weakref.WeakSet()
        self._waits = card.kind == "cuda" or (card.kind != "cpu" and pins is not None)
        self._device = card.device if card.kind == "cuda" else None
        self._room = room
        self._shares = shares
        self._given_up = 0
        self._largest = 1
        self._own: set[int] = set()
        self._pinning: dict[int, Arena] = {}
        self._closed = False
        self._files = Files()
        self._filed: set[object] = set()
        self._unpinned: set[object] = set()
        self._parked: set[object] = set()

    @property
    def arena_bytes(self) -> int:
        """Of masters that are packed, pinned or not."""
        return sum(each.bytes for each in self._there if isinstance(each, Arena))

    @property
    def filed_bytes(self) -> int:
        """Of masters, what is read from files for each use."""
        return sum(
            each.filed_bytes
            for each in self._there
            if isinstance(each, Filed) and each.parked is None
        )

    def plan(self, wishes: Sequence[Wish], *, streams: bool = True) -> None:
        """Choose which of `wishes`, in the order in which they stream, are parked, filed, pinned.

        For those that are not taken yet. Where another card, memory or pins are short, those that
        have them are spread evenly, since the others are slower. What does not stream is not
        parked.
        """
        if wishes and self._room is None:
            self._room = host_room(read_host_memory())
        if streams and self.annexe is not None and self.annexe.first:
            wishes = self._without_parked(wishes, self.annexe)
        if not wishes:
            return
        budget = self.pins.budget - self.pins.bytes
        sizes = [wish.layout.bytes for wish in wishes]
        self._largest = max(self._largest, *sizes)
        size = buffer_size(budget, self._largest)
        packed = self._choose_packed(wishes, reserve=COUNT * size + max(sizes))
        row = sorted(packed)
        if len(row) < len(wishes):
            self._filed |= {wish.key for at, wish in enumerate(wishes) if at not in packed}
            self._files.spares = sum(sizes) > read_host_memory().available
        takes = [pages(sizes[at]) for at in row]
        if len(row) < len(wishes) or (self._waits and sum(takes) > budget):
            self._bounce.open(size)
            budget = self.pins.budget - self.pins.bytes
        pinned = {row[at] for at in evenly(takes, budget)}
        unpinned = [wish for at, wish in enumerate(wishes) if at not in pinned]
        if streams and self._waits and self.annexe is not None and not self.annexe.first:
            unpinned = self._without_parked(unpinned, self.annexe)
        self._unpinned |= {wish.key for wish in unpinned}

    def has_room_for(self, wishes: Sequence[Wish], *, beside: int) -> bool:
        """Whether all can be in memory now, with `beside` bytes of the host left to others."""
        costs = [self._cost(wish) for wish in wishes]
        if self._filed or not wishes:
            return not wishes
        room = min(self.room_left, host_room(read_host_memory()))
        return sum(costs) + _AT_ONCE * max(wish.layout.bytes for wish in wishes) + beside <= room

    def take_all(self, wishes: deque[Wish]) -> Iterator[Master]:
        """The master of each, as `take` gives it; several are packed at once where there is room.

        They are taken out of `wishes`, so that what they were packed from can go one by one. Those
        that are to be held in place are so by whoever packs them.
        """
        sizes = sum(wish.layout.bytes for wish in wishes)
        if self._room is None or sizes > self._left or self._filed or self._parked:
            while wishes:
                yield self.take(wishes.popleft())
            return
        under_way: deque[tuple[Wish, Future[Arena]]] = deque()
        with ThreadPoolExecutor(_AT_ONCE) as workers:
            while wishes or under_way:
                while wishes and len(under_way) < _AT_ONCE:
                    wish = wishes.popleft()
                    job = workers.submit(self._packed, wish, self._origin(wish))
                    under_way.append((wish, job))
                wish, packed = under_way.popleft()
                yield self.take(wish, packed=packed.result())

    def take(self, wish: Wish, *, packed: Arena | None = None) -> Master:
        """The master of `wish`, whose own tensors may go unless they are among its views.

        Where it is `packed` already, that is it. Raises `MemoryShortage` where there is no room for
        what cannot be read where it lies.
        """
        if self._room is None:
            self.plan([wish])
        if packed is None and wish.key in self._parked:
            parked = self._park(wish)
            if parked is not None:
                return parked
        self._largest = max(self._largest, wish.layout.bytes)
        if packed is None and (wish.key in self._filed or wish.layout.bytes > self._left):
            return self._file(wish)
        arena = packed or Arena(wish.layout, wish.tensors, shared=self._origin(wish))
        arena.at_once = arena.pinned or not self._waits
        self._given_up += self._foreign_bytes(wish)
        self._own.add(arena.buffer.untyped_storage().data_ptr())
        self._there.add(arena)
        self._pinning.pop(id(arena), None)
        if packed is None and wish.key not in self._unpinned:
            self.pin(arena)
        if not arena.at_once:
            self._open_bounce()
        return arena

    def _origin(self, wish: Wish) -> Shared | None:
        """What is shared with whoever has the same bytes of files; None where it is not of such."""
        if not self._shares or not all(map(self._files.is_mapped, wish.tensors)):
            return None
        found: list[Hashable] = [wish.layout]
        for tensor, place in zip(wish.tensors, wish.layout.places, strict=True):
            stretch = self._files.find(tensor) if place.is_as(tensor) else None
            if stretch is None:
                return None
            found.append((stretch.file.identity, stretch.offset))
        return Shared.of(tuple(found))

    def _packed(self, wish: Wish, shared: Shared | None) -> Arena:
        """By a worker: nobody knows of it before it is taken, so it is in the books till then."""
        arena = Arena(wish.layout, wish.tensors, shared=shared)
        if wish.key not in self._unpinned:
            if self._device is not None:
                torch.cuda.set_device(self._device)
            self._pinning[id(arena)] = arena
            arena.pinned = self.pins.hold(arena.buffer)
            if self._closed:
                self.release(arena)
        return arena

    @property
    def room_left(self) -> int:
        """Bytes that masters may still take."""
        if self._room is None:
            self._room = host_room(read_host_memory())
        return self._left

    def is_mapped(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in a file, so that letting it go frees nothing."""
        return self._files.is_mapped(tensor)

    def given_up(self, tensor: torch.Tensor) -> None:
        """A weight goes, since its master holds it packed; what has no values is gone already."""
        if tensor.device.type == "cpu" and tensor.untyped_storage().data_ptr() not in self._own:
            self._given_up += tensor.nbytes

    def adopt(self, arena: Arena, *, pin: bool, park: bool = False) -> None:
        """Take the master that somebody else has made, and hold it in place if it is to stream.

        Or `park` a copy of it, where that is better and there is room.
        """
        if self._room is None:
            self._room = host_room(read_host_memory())
        self._largest = max(self._largest, arena.bytes)
        arena.at_once = not self._waits
        self._there.add(arena)
        if park and self.annexe is not None and self.annexe.first and self.annexe.park(arena):
            return
        if pin:
            self.pin(arena)
        if pin and not arena.at_once:
            self._open_bounce()

    def pin(self, master: Master) -> bool:
        """Hold `master` in place, if that is allowed and of use; whether it is held."""
        if isinstance(master, Arena) and not master.pinned and master.parked is None:
            master.pinned = True  # until it is known: whatever is interrupted is released
            self._pinning[id(master)] = master
            master.pinned = self.pins.hold(master.buffer)
            master.at_once = master.pinned or not self._waits
            del self._pinning[id(master)]
        return master.pinned

    def park_all(self, masters: Sequence[Master], *, before: Sequence[Master]) -> None:
        """Copies of `masters`, which stream, come before those of others on the other card.

        Only where that is the first choice. Nothing is under way from any of them.
        """
        annexe = self.annexe
        if annexe is None or not annexe.first:
            return
        coming = [each for each in masters if each.parked is None and each.bytes]
        idle = [each for each in before if each.parked is not None]
        for master in coming:
            annexe.make_room(master.bytes, idle)
            if annexe.park(master) and isinstance(master, Arena) and master.pinned:
                self.pins.release(master.buffer)
                master.pinned = False

    def release(self, master: Master) -> None:
        """Hold it no longer; nothing may be under way from it. Harmless when repeated."""
        if self.annexe is not None:
            self.annexe.release(master)
        if isinstance(master, Arena) and master.pinned:
            self.pins.release(master.buffer)
            master.pinned = False
            master.at_once = not self._waits

    def stop(self) -> None:
        """End the worker; what was not begun is dropped. Harmless when repeated."""
        self.lane.close()

    def close(self) -> None:
        """Let buffers and files go, after `stop`, when all copies have arrived."""
        self.lane.close()
        self._closed = True
        for each in (*self._pinning.values(), *self._there):
            self.release(each)
        self._pinning.clear()
        if self.annexe is not None:
            self.annexe.close()
        self._bounce.close()
        self._files.close()

    @property
    def _left(self) -> int:
        assert self._room is not None
        return self._room + self._given_up - self.arena_bytes

    def _choose_packed(self, wishes: Sequence[Wish], *, reserve: int) -> set[int]:
        """Indices; what is in memory already takes no more than it has, one after the other."""
        costs = [self._cost(wish) for wish in wishes]
        if sum(costs) + reserve <= self._left:
            return set(range(len(wishes)))
        return evenly(costs, self._left - reserve)

    def _cost(self, wish: Wish) -> int:
        """Bytes that its master takes for good: what is in memory already goes when it is made."""
        return sum(tensor.nbytes for tensor in wish.tensors if self._files.is_mapped(tensor))

    def _foreign_bytes(self, wish: Wish) -> int:
        """Of memory that is neither mapped nor in an arena: it goes when the wish is packed."""
        return sum(
            each.nbytes
            for each in wish.tensors
            if each.untyped_storage().data_ptr() not in self._own
            and not self._files.is_mapped(each)
        )

    def _without_parked(self, wishes: Sequence[Wish], annexe: Annexe) -> list[Wish]:
        """Those of `wishes` that find no room on the other card; the others are spread evenly."""
        chosen = evenly([wish.layout.bytes for wish in wishes], annexe.room)
        self._parked |= {wishes[at].key for at in chosen}
        return [wish for at, wish in enumerate(wishes) if at not in chosen]

    def _park(self, wish: Wish) -> Master | None:
        """What it was made from stays as it is, and a copy lies on the other card, if it fits."""
        self._parked.discard(wish.key)
        assert self.annexe is not None
        if self.annexe.room < wish.layout.bytes:
            return None
        master = self._as_it_lies(wish)
        master.lives_parked = True
        if not self.annexe.park(master):
            return None
        self._there.add(master)
        return master

    def _file(self, wish: Wish) -> Filed:
        master = self._as_it_lies(wish)
        self._there.add(master)
        self._open_bounce()
        return master

    def _as_it_lies(self, wish: Wish) -> Filed:
        tensors: list[torch.Tensor] = []
        stretches: list[Stretch | None] = []
        for tensor, place in zip(wish.tensors, wish.layout.places, strict=True):
            whole = place.is_as(tensor)
            stretches.append(self._files.find(tensor) if whole else None)
            tensors.append(tensor if whole else self._without_gaps(tensor, place))
        return Filed(wish.layout, tensors, stretches)

    def _open_bounce(self) -> None:
        self._bounce.open(buffer_size(self.pins.budget - self.pins.bytes, self._largest))

    def _without_gaps(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        if place.bytes > self._left:
            raise MemoryShortage(
                f"Not enough host memory for a copy of weights {tuple(tensor.shape)} without gaps.",
                figures=f"Needs {format_bytes(place.bytes)}; {format_bytes(max(0, self._left))} "
                f"is left of {format_bytes(self._room or 0)} for masters.",
                tried=("read them where they lie",),
                advice="more host memory, or load them contiguous",
            )
        self._given_up -= place.bytes
        copy = torch.empty_strided(place.shape, place.stride, dtype=place.dtype)
        return copy.copy_(tensor)
