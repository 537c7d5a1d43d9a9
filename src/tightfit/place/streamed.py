"""A module larger than its card: some weights stay, the others are copied for each use."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tightfit.card.base import Card
from tightfit.card.lanes import Queue
from tightfit.errors import UsageError
from tightfit.place.arena import Arena
from tightfit.place.binding import Binding, Passing
from tightfit.place.caches import forget_cached
from tightfit.place.groups import Group, groups_of
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.pinned import Pins
from tightfit.place.placeholders import Placeholders
from tightfit.place.ring import Copies, Ring
from tightfit.place.seat import Seat
from tightfit.plan.residency import Residency
from tightfit.weigh.blocks import Weights
from tightfit.weigh.order import Order
from tightfit.weigh.tensors import Held, Kind, identity, walk

_sessions: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_guard = threading.Lock()


@dataclass
class Streaming:
    """A module while it is streamed.

    Attributes:
        groups: its weights as they move.
        resident_bytes: of what stays on the card, tables in plain attributes included.
        rings: the first for most of the bytes; further ones for weights that are in use
            meanwhile, such as tables that a block owns beside its layers.
        pinned_bytes: of masters that the driver holds in place.
    """

    groups: tuple[Group, ...]
    resident_bytes: int = 0
    rings: list[Ring] = field(default_factory=list)
    pinned_bytes: int = 0

    @property
    def bytes(self) -> int:
        """On the card, one element of each dtype apart that stands for weights that are away."""
        return self.resident_bytes + self.ring_bytes

    @property
    def ring_bytes(self) -> int:
        """Of all slots."""
        return sum(ring.bytes for ring in self.rings)

    @property
    def copies(self) -> Copies:
        """Of all rings, so far."""
        each = [ring.copies for ring in self.rings]
        return Copies(
            count=sum(copies.count for copies in each),
            bytes=sum(copies.bytes for copies in each),
            late=sum(copies.late for copies in each),
            grown=sum(copies.grown for copies in each),
        )


@contextmanager
def streamed(
    module: nn.Module,
    card: Card,
    residency: Residency,
    weights: Weights,
    *,
    order: Order | None = None,
    pins: Pins | None = None,
) -> Iterator[Streaming]:
    """While inside, `module` computes on `card` with the weights where `residency` says.

    Results are the same bit for bit as with everything on the card. What streams is packed into
    buffers of our own on the host, and stays in them afterwards; nothing is ever copied back.
    Parameters stay the objects they are, without gradients; outside calls those that stream show
    NaN, and state dicts have the true values. Inputs on the host are moved to the card, results
    stay there. Other threads wait for one another's calls.

    Args:
        module: on the host, in any state of gradients; which way it is called does not matter.
        card: where it runs.
        residency: planned for `weights`, at the level of blocks or of leaves.
        weights: `tightfit.weigh.module_blocks.blocks_of` this module.
        order: of one call; tells of weights that are used while their owner is not called.
        pins: which masters are held in place for the driver; None is none.

    Whatever happens inside, the module is whole afterwards and the card has its bytes back.
    Raises `UsageError` for what cannot be streamed, by its path, for a module that is streamed
    already, and for inputs that require gradients; what the card raises where it is full.
    """
    with ExitStack() as stack:
        _claim(module, stack)
        if residency.ring.level == "rows":
            raise UsageError("the plan streams slices of rows, which cannot be done yet.")
        groups = groups_of(module, residency, weights, order=order)
        session = Streaming(groups)
        with _plain():
            _set_up(module, card, residency, session, pins or Pins.none(), stack)
        yield session


@contextmanager
def _plain() -> Iterator[None]:
    """Whatever the caller's mode: what is made here is written to in every mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _claim(module: nn.Module, stack: ExitStack) -> None:
    with _guard:
        if module in _sessions:
            raise UsageError(f"`{type(module).__name__}` is being streamed already.")
        _sessions.add(module)
    stack.callback(_sessions.discard, module)


def _set_up(
    module: nn.Module,
    card: Card,
    residency: Residency,
    session: Streaming,
    pins: Pins,
    stack: ExitStack,
) -> None:
    """Everything in order; `stack` undoes it in the opposite one."""
    seats: dict[int, Seat] = {}
    if card.kind == "cuda":  # it would choose other algorithms, other bits, by what is free
        stack.callback(setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
        torch.backends.cudnn.benchmark = False
    stack.callback(forget_cached, module)
    stack.callback(_restore, list(walk(module)), card.device)
    stack.callback(_restore_seats, seats)
    for group in session.groups:
        for held in group.held:
            if id(held.tensor) not in seats:
                seats[id(held.tensor)] = Seat(held.tensor, held.path)
    placeholders = Placeholders(card.device)
    arenas: dict[Group, Arena] = {}
    for group in session.groups:
        if group.stays:
            session.resident_bytes += _stay(group, seats, card.device)
        else:
            arenas[group] = _pack(group, seats)
            if pins.hold(arenas[group].buffer):
                session.pinned_bytes += arenas[group].layout.bytes
                stack.callback(pins.release, arenas[group].buffer)
    compute = compute_of(card)
    modules = dict(module.named_modules())
    passing: list[Passing] = []
    for number, ring in _rings(card, compute, arenas, residency, session, stack).items():
        for group in (group for group in arenas if group.ring == number):
            each = _seats_of(group, seats)
            away = [placeholders.like(seat.master) for seat, _ in each]
            for (seat, _), placeholder in zip(each, away, strict=True):
                seat.bring(placeholder)
            passing.append(Passing(group, arenas[group], ring, each, away, modules[group.head]))
    session.resident_bytes += _bring_constants(module, seats, card.device)
    binding = Binding(module, card, compute, passing, seats)
    stack.callback(binding.close)
    for ring in session.rings:
        ring.ahead()


def _seats_of(group: Group, seats: dict[int, Seat]) -> list[tuple[Seat, int]]:
    """Each object once, with the index of its bytes."""
    found = {
        id(held.tensor): (seats[id(held.tensor)], at)
        for held, at in zip(group.held, group.places, strict=True)
    }
    return list(found.values())


def _stay(group: Group, seats: dict[int, Seat], device: torch.device) -> int:
    buffer = torch.empty(group.layout.bytes, dtype=torch.uint8, device=device)
    views = group.layout.views(buffer)
    done: set[int] = set()
    for seat, at in _seats_of(group, seats):
        if at not in done:
            views[at].copy_(seat.master)
            done.add(at)
        seat.bring(views[at])
    return group.layout.bytes


def _pack(group: Group, seats: dict[int, Seat]) -> Arena:
    """The master of a group; the tensors stand for it at once, so that theirs can go."""
    each = _seats_of(group, seats)
    unique = {at: seat.master for seat, at in reversed(each)}
    arena = Arena(group.layout, [unique[at] for at in range(len(unique))])
    for seat, at in each:
        seat.settle(arena.views[at])
    return arena


def _rings(
    card: Card,
    compute: Queue,
    arenas: dict[Group, Arena],
    residency: Residency,
    session: Streaming,
    stack: ExitStack,
) -> dict[int, Ring]:
    """The planned ring, and one slot for each number of groups in use beside it."""
    members: dict[int, list[Arena]] = defaultdict(list)
    for group, arena in arenas.items():
        members[group.ring].append(arena)
    lane = open_lane(card)
    rings: dict[int, Ring] = {}

    def drain() -> None:
        lane.drain()
        card.sync()
        for ring in rings.values():
            ring.close()

    stack.callback(drain)
    for number in sorted(members):
        slots = 1 if number else max(1, residency.ring.slots)
        rings[number] = Ring(card, lane, compute, members[number], slots=slots)
        session.rings.append(rings[number])
    return rings


def _bring_constants(module: nn.Module, seats: dict[int, Seat], device: torch.device) -> int:
    """Tables that modules keep as plain attributes, without ever telling PyTorch of them."""
    masters = {identity(seat.master) for seat in seats.values()}
    size = 0
    for held in list(walk(module)):
        plain = held.kind is Kind.ATTRIBUTE and not held.steps and not held.recomputed
        host = held.tensor.device.type == "cpu" and held.tensor.dim() > 0
        if plain and host and identity(held.tensor) not in masters:
            vars(held.owner)[held.name] = held.tensor.to(device)
            size += held.tensor.nbytes
    return size


def _restore_seats(seats: dict[int, Seat]) -> None:
    with _plain():
        for seat in seats.values():
            seat.restore()


def _restore(before: Sequence[Held], device: torch.device) -> None:
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
