"""A module larger than its card: some weights stay, the others are copied for each use."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from torch import nn

from tightfit.card.base import Card
from tightfit.errors import UsageError
from tightfit.place.streaming.arena import Arena
from tightfit.place.streaming.binding import Passing
from tightfit.place.streaming.groups import Group, groups_of
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.placement import Placement, plain_mode
from tightfit.place.streaming.ring import Copies, Ring
from tightfit.plan.streaming.residency import Residency
from tightfit.weigh.blocks import Weights
from tightfit.weigh.order import Order

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
    compares: bool = False,
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
        compares: for finding faults: each copy is waited for and compared with its master.

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
        with plain_mode():
            _place(
                Placement(module, card, stack), residency, session, pins or Pins.none(), compares
            )
        yield session


def _claim(module: nn.Module, stack: ExitStack) -> None:
    with _guard:
        if module in _sessions:
            raise UsageError(f"`{type(module).__name__}` is being streamed already.")
        _sessions.add(module)
    stack.callback(_sessions.discard, module)


def _place(
    placement: Placement, residency: Residency, session: Streaming, pins: Pins, compares: bool
) -> None:
    """Resident groups, masters, the planned ring, and one slot for each number in use beside it."""
    placement.seat(session.groups)
    rings: dict[int, dict[Group, Arena]] = defaultdict(dict)
    for group in session.groups:
        if group.stays:
            session.resident_bytes += placement.stay(group)
        else:
            rings[group.ring][group] = placement.pack(group, pins)
    session.pinned_bytes = pins.bytes
    passing: list[Passing] = []
    for number, arenas in sorted(rings.items()):
        slots = 1 if number else residency.ring.slots
        ring = placement.open_ring(list(arenas.values()), slots=slots, compares=compares)
        session.rings.append(ring)
        passing += [placement.pass_through(group, arena, ring) for group, arena in arenas.items()]
    session.resident_bytes += placement.bring_tables()
    placement.bind(passing)
    for ring in session.rings:
        ring.ahead()
