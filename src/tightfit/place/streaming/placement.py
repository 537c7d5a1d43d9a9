"""One module on its way to a card and back: each step is undone in the opposite order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from tightfit.card.base import Card
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.streaming.arena import Arena
from tightfit.place.streaming.binding import Binding, Passing
from tightfit.place.streaming.caches import forget_cached
from tightfit.place.streaming.groups import Group
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.placeholders import Placeholders
from tightfit.place.streaming.ring import Ring
from tightfit.place.streaming.seat import Seat
from tightfit.weigh.tensors import Held, Kind, identity, walk


class Placement:
    """What is done to a module, its tensors and a card, and how it is undone.

    The steps are to be taken in the order they stand in here. What they raise leaves everything to
    be undone by the stack, and the module whole.
    """

    def __init__(self, module: nn.Module, card: Card, stack: ExitStack) -> None:
        """`stack` is closed by the caller."""
        self._module = module
        self._card = card
        self._stack = stack
        self._seats: dict[int, Seat] = {}
        self._placeholders = Placeholders(card.device)
        self._lane = open_lane(card)
        self._compute = compute_of(card)
        if card.kind == "cuda":  # it would choose other algorithms, other bits, by what is free
            backend: Any = torch.backends.cudnn
            stack.callback(setattr, backend, "benchmark", backend.benchmark)
            backend.benchmark = False
        stack.callback(forget_cached, module)
        stack.callback(_put_back, list(walk(module)), card.device)
        stack.callback(_restore, self._seats)

    def seat(self, groups: Iterable[Group]) -> None:
        """From here on the tensors of `groups` are managed: none has gradients."""
        for group in groups:
            for held in group.held:
                if id(held.tensor) not in self._seats:
                    self._seats[id(held.tensor)] = Seat(held.tensor, held.path)

    def stay(self, group: Group) -> int:
        """Put `group` on the card for good; its bytes there."""
        buffer = torch.empty(group.layout.bytes, dtype=torch.uint8, device=self._card.device)
        views = group.layout.views(buffer)
        done: set[int] = set()
        for seat, at in self._seats_of(group):
            if at not in done:
                views[at].copy_(seat.master)
                done.add(at)
            seat.bring(views[at])
        return group.layout.bytes

    def pack(self, group: Group, pins: Pins) -> Arena:
        """The master of `group`; its tensors stand for it at once, so that theirs can go."""
        each = self._seats_of(group)
        unique = {at: seat.master for seat, at in reversed(each)}
        arena = Arena(group.layout, [unique[at] for at in range(len(unique))])
        for seat, at in each:
            seat.settle(arena.views[at])
        if pins.hold(arena.buffer):
            self._stack.callback(pins.release, arena.buffer)
        return arena

    def open_ring(self, arenas: Sequence[Arena], *, slots: int, compares: bool) -> Ring:
        """Slots that `arenas` pass through."""
        ring = Ring(self._card, self._lane, self._compute, arenas, slots=slots, compares=compares)
        self._stack.callback(ring.close)
        self._stack.callback(self._card.sync)
        return ring

    def pass_through(self, group: Group, arena: Arena, ring: Ring) -> Passing:
        """Take the tensors of `group` off the host: until they are used, they show nothing."""
        each = self._seats_of(group)
        away = [self._placeholders.like(seat.master) for seat, _ in each]
        for (seat, _), placeholder in zip(each, away, strict=True):
            seat.bring(placeholder)
        return Passing(group, arena, ring, each, away, self._module.get_submodule(group.head))

    def bring_tables(self) -> int:
        """Put tables that modules keep as plain attributes on the card; their bytes."""
        masters = {identity(seat.master) for seat in self._seats.values()}
        size = 0
        for held in list(walk(self._module)):
            plain = held.kind is Kind.ATTRIBUTE and not held.steps and not held.recomputed
            host = held.tensor.device.type == "cpu" and held.tensor.dim() > 0
            if plain and host and identity(held.tensor) not in masters:
                vars(held.owner)[held.name] = held.tensor.to(self._card.device)
                size += held.tensor.nbytes
        return size

    def bind(self, passing: Iterable[Passing]) -> None:
        """From here on calls find their weights."""
        binding = Binding(self._module, self._card, self._compute, passing, self._seats)
        self._stack.callback(binding.close)

    def _seats_of(self, group: Group) -> list[tuple[Seat, int]]:
        """Each object once, with the index of its bytes."""
        found = {
            id(held.tensor): (self._seats[id(held.tensor)], at)
            for held, at in zip(group.held, group.places, strict=True)
        }
        return list(found.values())


@contextmanager
def plain_mode() -> Iterator[None]:
    """Whatever the caller's mode: what is made here is written to in every mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _restore(seats: dict[int, Seat]) -> None:
    with plain_mode():
        for seat in seats.values():
            seat.restore()


def _put_back(before: Sequence[Held], device: torch.device) -> None:
    """What modules hold is what they held, where calls or we have put something on the card."""
    for held in before:
        if held.steps:
            continue
        table: dict[str, Any] = vars(held.owner)
        if held.kind is not Kind.ATTRIBUTE:
            parameter = held.kind is Kind.PARAMETER
            table = held.owner._parameters if parameter else held.owner._buffers
        now = table.get(held.name)
        if now is not held.tensor and isinstance(now, torch.Tensor) and now.device == device:
            table[held.name] = held.tensor
