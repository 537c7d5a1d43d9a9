"""The master of each group: made when it is first asked for, and let go when nothing needs it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakMethod

import torch

from tightfit.card.base import Card
from tightfit.place.streaming.groups import Group
from tightfit.place.streaming.master import Master
from tightfit.place.streaming.masters import Masters, Wish
from tightfit.place.streaming.packed_arena import PackedArena, Unpacker, packed_arena
from tightfit.place.streaming.pinned import pages
from tightfit.place.streaming.seat import Seat

_AT_ONCE = min(8, max(4, os.cpu_count() or 1))
"""Groups that are packed into fewer bytes at the same time: most of it is memory newly taken."""
Key = tuple[bool, tuple[int, ...]]
"""Whether a group is packed, and its tensors by their ids: two with the same have one layout."""


@dataclass(eq=False)
class _Stored:
    """The master of a group, and the tensors whose values are in it."""

    master: Master
    users: set[int] = field(default_factory=set)


class Store:
    """The masters of the groups of one module, and the seats that they serve.

    Another way to group the same tensors makes other masters of the ones there are; these go when
    the last of their tensors has another.
    """

    def __init__(
        self,
        card: Card,
        host: Masters,
        seats: dict[int, Seat],
        hide: Callable[[Group], None],
        *,
        returns: bool = False,
    ) -> None:
        """Nothing is there yet. `hide` lets the tensors of a group show that they are away.

        Where what is resident rests and `returns`, its masters are held in place as well.

        It is a method of who has this store, which is not kept alive by it: in a cycle, the weights
        would stay until somebody collects.
        """
        self._card = card
        self._host = host
        self._seats = seats
        self._hide = WeakMethod(hide)
        self._returns = returns
        self._stored: dict[Key, _Stored] = {}
        self._unpacker = Unpacker()
        self._packs_away = False

    def seats_of(self, group: Group) -> list[tuple[Seat, int]]:
        """Each tensor object once, with the index of its bytes."""
        found = {
            id(held.tensor): (self._seats[id(held.tensor)], at)
            for held, at in zip(group.held, group.places, strict=True)
        }
        return list(found.values())

    def find(self, group: Group) -> Master | None:
        """The master of `group`, if it was made, and is as it was made to be."""
        stored = self._stored.get(key_of(group))
        if stored is None or (stored.master.lives_parked and stored.master.parked is None):
            return None
        return stored.master

    def choose(self, groups: Iterable[Group], *, streams: bool = True) -> None:
        """Decide where the masters of `groups`, in the order in which they stream, will be."""
        missing = [each for each in groups if self.find(each) is None]
        self._host.plan([self._wish(each) for each in missing], streams=streams)

    def has_room_for(self, groups: Iterable[Group], *, beside: int) -> bool:
        """Whether masters of `groups` can all be in memory, with `beside` bytes left to others."""
        return self._host.has_room_for([self._wish(each) for each in groups], beside=beside)

    def take_all(self, groups: Iterable[Group]) -> None:
        """Make the masters of all `groups`, several at once."""
        every = {key_of(group): group for group in groups if self.find(group) is None}
        self._pack([group for group in every.values() if group.packed])
        missing = [group for group in every.values() if not group.packed]
        wishes = deque(self._wish(group) for group in missing)
        for group, master in zip(missing, self._host.take_all(wishes), strict=True):
            self._keep(group, master)

    def take(self, group: Group) -> Master:
        """The master of `group`, made the first time."""
        found = self.find(group)
        if found is not None:
            return found
        wish = self._wish(group)
        if group.packed:
            return self._adopt(group, packed_arena(self._card, wish.layout, wish.tensors))
        return self._keep(group, self._host.take(wish))

    def pin_for(self, groups: Iterable[Group], *, before: Iterable[Key]) -> None:
        """Where pins are short, masters of `groups`, which stream, come before those of others.

        Likewise for their copies on another card.
        """
        pins = self._host.pins
        idle = [self._stored[key].master for key in before if key in self._stored]
        masters = [self._stored[key_of(group)].master for group in groups]
        self._host.park_all(masters, before=idle)
        for master in masters:
            size = pages(master.bytes)
            held = master.pinned or master.parked is not None
            if held or master.whole is None or size > pins.budget:
                continue
            while idle and pins.bytes + size > pins.budget:
                self._host.release(idle.pop())
            if pins.bytes + size <= pins.budget:
                self._host.pin(master)

    def unpin(self, *, but: Collection[Key]) -> None:
        """Hold no master in place but these; nothing is under way from the others."""
        for key, stored in self._stored.items():
            if key not in but:
                self._host.release(stored.master)

    def close(self) -> None:
        """Hold none in place, and keep none that no seat needs."""
        while self._stored:
            self._host.release(self._stored.popitem()[1].master)

    def forget_unpacked(self) -> None:
        """Keep nothing of what was unpacked on the host for somebody who looked."""
        self._unpacker.forget()

    def _pack(self, groups: Sequence[Group]) -> None:
        """Several at once: what takes the time is memory that is touched for the first time."""
        waiting = deque(groups)
        self._packs_away = self._host.room_left < sum(group.layout.bytes for group in groups)
        under_way: deque[tuple[Group, Future[PackedArena]]] = deque()
        with ThreadPoolExecutor(_AT_ONCE) as workers:
            while waiting or under_way:
                while waiting and len(under_way) < _AT_ONCE:
                    group = waiting.popleft()
                    wish = self._wish(group)
                    job = workers.submit(packed_arena, self._card, wish.layout, wish.tensors)
                    under_way.append((group, job))
                group, job = under_way.popleft()
                self._adopt(group, job.result())

    def _adopt(self, group: Group, packed: PackedArena) -> Master:
        self._host.adopt(packed, pin=self._returns or not group.stays, park=not group.stays)
        self._keep(group, packed)
        if self._packs_away:
            self._pack_away(group, packed)
        return packed

    def _pack_away(self, group: Group, packed: PackedArena) -> None:
        """Let go the weights that were packed, where they take memory: they can be unpacked."""
        each = self.seats_of(group)
        if any(self._host.is_mapped(seat.like) for seat, _ in each):
            return
        hide = self._hide()
        if hide is not None:
            hide(group)
        like: dict[int, torch.Tensor] = {}
        for seat, at in each:
            if at not in like:
                like[at] = torch.empty_like(seat.like, device="meta", requires_grad=False)
                self._host.given_up(seat.like)
            seat.pack_away(like[at], partial(self._unpacker.tensor, packed, at))

    def _wish(self, group: Group) -> Wish:
        unique = {at: seat.master for seat, at in reversed(self.seats_of(group))}
        return Wish(group.layout, tuple(unique[at] for at in range(len(unique))))

    def _keep(self, group: Group, master: Master) -> Master:
        """It serves the seats of `group` from now on; masters that nothing needs any more go."""
        key = key_of(group)
        stored = self._stored[key] = _Stored(master)
        each = self.seats_of(group)
        ids = {id(seat.tensor) for seat, _ in each}
        for seat, at in each if master.packed is None and not master.shared else ():
            seat.settle(master.views[at])
        stored.users |= ids
        for other in [k for k, m in self._stored.items() if m is not stored and m.users & ids]:
            self._stored[other].users -= ids
            if not self._stored[other].users:
                self._host.release(self._stored.pop(other).master)
        return master


def key_of(group: Group) -> Key:
    """What tells masters apart."""
    first: dict[int, int] = {}
    for held, at in zip(group.held, group.places, strict=True):
        first.setdefault(at, id(held.tensor))
    return group.packed, tuple(first.values())
