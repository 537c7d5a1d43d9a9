"""A module larger than its card: some weights stay, the others are copied for each use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from tightfit.card.base import Card
from tightfit.card.lanes import Lane, Queue
from tightfit.place.streaming.annexe import Annexe
from tightfit.place.streaming.arrangement import Arrangement, groups_for
from tightfit.place.streaming.binding import Binding
from tightfit.place.streaming.claims import claim
from tightfit.place.streaming.groups import Group, Scan
from tightfit.place.streaming.masters import Masters
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.placement import Placement, plain_mode
from tightfit.place.streaming.ring import Copies, Ring
from tightfit.place.streaming.strangers import refuse_strangers
from tightfit.place.streaming.trace import StepTrace
from tightfit.place.streaming.tracing import Tracer
from tightfit.place.streaming.turn import between_calls
from tightfit.place.streaming.watching import Replanned
from tightfit.plan.streaming.residency import Residency
from tightfit.watch.teller import Teller
from tightfit.weigh.blocks import Weights
from tightfit.weigh.conversions import Conversions
from tightfit.weigh.order import Order
from tightfit.weigh.tensors import Held


class Streaming:
    """A module while it is streamed."""

    def __init__(
        self,
        arrangement: Arrangement,
        placement: Placement,
        binding: Binding,
        tracer: Tracer | None,
    ) -> None:
        self._arrangement = arrangement
        self._placement = placement
        self._binding = binding
        self._tracer = tracer

    def change(self, residency: Residency, *, room: int | None = None) -> None:
        """Move weights to where another residency says: between two calls, with the same bits.

        Waits for calls of other threads. What goes is freed before anything is allocated, so no
        more is on the card at any time than before or after; what it frees goes back to the
        driver. What stays where it is is not touched, nothing is copied back, and each weight is
        packed on the host once, unless the level changes.

        Args:
            residency: planned for the same weights, at either level.
            room: what reserved may come to, as for `streamed`.

        Raises `UsageError` in the middle of a call of this thread, and for a plan of another
        module: then nothing has been moved. What the card raises when it is full: then all is as
        it was before; where not even that fits any more (somebody else took memory), or after an
        interrupt, nothing is on the card and calls raise `UsageError` until a change succeeds.
        """
        between_calls(
            self._binding.running,
            "`change`",
            lambda: self._arrangement.change(residency, room=room),
        )

    def rest(self, *, waits: bool = True) -> int:
        """Let go all that it has on the card, between two calls; a `change` places it again.

        Copies and compute that are under way are waited for. Masters stay where they are, those
        that are held in place too, so that it comes back by copies alone; weights show that they
        are away, and state dicts have the true values. Until then calls raise `UsageError`. What
        stays on the card is one element of each dtype, which stands for weights that are away.

        Harmless when repeated. After an interrupt it is at rest, or another `rest` or `change`
        makes good what is missing.

        Args:
            waits: for calls of other threads; else there must be none.

        Returns:
            How many bytes came free, by the count of the card's allocator.

        Raises `UsageError` in the middle of a call, and where a weight was written to while it was
        on the card: then nothing has been moved.
        """
        freed: list[int] = []
        between_calls(
            self._binding.running,
            "`rest`",
            lambda: freed.append(self._arrangement.rest()),
            waits=waits,
        )
        return freed[0]

    @property
    def rests(self) -> bool:
        """Whether it was let to rest, and not placed again since."""
        return self._arrangement.rests

    @property
    def differs(self) -> bool:
        """Whether parameters came to the module or left it, which are not moved then."""
        return self._arrangement.differs

    def end_calls(self) -> None:
        """End calls of this thread that an interrupt has ended, for whoever calls the module.

        From within that call's own frames, it cannot be seen that they have.
        """
        if self._binding.running.owner == threading.get_ident():
            self._binding.running.end_all()

    def show_own(self) -> None:
        """Until the next call, what the module itself owns and is away shows its values on the
        host, for whoever reads it meanwhile; what its parts own shows NaN."""
        with plain_mode():
            self._placement.show_own()

    def hide_own(self) -> None:
        """What `show_own` showed is away again, for a call that is about to be made."""
        with plain_mode():
            self._placement.hide_own()

    def whole(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `run`, a method of the module, gives: as in a call, what the module owns is there.

        So it is where that streams; else the method's own calls are the outermost ones.
        """
        return self._binding.whole(run, args, kwargs)

    def newcomers(self) -> list[Held]:
        """The parameters that came to it."""
        return self._arrangement.newcomers()

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """While inside, calls are left alone: other tensors stand for the weights."""
        self._binding.asleep = True
        try:
            yield
        finally:
            self._binding.asleep = False

    def master(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a weight of the module, on the host, wherever it is now."""
        return self._placement.master(tensor)

    @property
    def residency(self) -> Residency:
        """What is done now."""
        found = self._arrangement.residency
        assert found is not None
        return found

    @property
    def groups(self) -> tuple[Group, ...]:
        """Its weights as they move now."""
        return self._arrangement.groups

    @property
    def replanned(self) -> tuple[Replanned, ...]:
        """What was changed in the middle of placing, since more was reserved than foreseen."""
        return self._arrangement.replanned

    @property
    def resident_bytes(self) -> int:
        """Of what stays on the card, tables in plain attributes included."""
        return self._placement.resident_bytes + self.table_bytes

    @property
    def table_bytes(self) -> int:
        """Of tables in plain attributes that are on the card."""
        return self._placement.tables.bytes

    @property
    def rings(self) -> list[Ring]:
        """The first for most of the bytes; further ones for weights that are in use meanwhile,
        such as tables that a block owns beside its layers."""
        return self._placement.rings

    @property
    def host(self) -> Masters:
        """What it takes of the host."""
        return self._placement.host

    @property
    def pinned_bytes(self) -> int:
        """Of masters that the driver holds in place."""
        return self._placement.pinned_bytes

    @property
    def bytes(self) -> int:
        """On the card, one element of each dtype apart that stands for weights that are away."""
        return self.resident_bytes + self.ring_bytes + self.scratch_bytes

    @property
    def taken(self) -> int:
        """Of the card, by its allocator's count, which rounds what is asked for.

        Tables apart. No less than was asked for: other threads take and give back meanwhile.
        """
        return max(self._arrangement.taken, self.bytes - self.table_bytes)

    @property
    def scratch_bytes(self) -> int:
        """Of what packed weights are unpacked into, and stored ones are converted into."""
        return self._placement.scratch_bytes + self._placement.conversion_bytes

    @property
    def ring_bytes(self) -> int:
        """Of all slots."""
        return sum(ring.bytes for ring in self.rings)

    @property
    def steps(self) -> tuple[StepTrace, ...]:
        """What the latest outermost calls did, the last one last; none where nothing is traced.

        The host waits until the card is done with them.
        """
        return () if self._tracer is None else self._tracer.steps

    @property
    def copies(self) -> Copies:
        """Of all rings, so far; also of those that a change has closed."""
        each = [*self._placement.past, *(ring.copies for ring in self.rings)]
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
    host: int | None = None,
    shares: bool = False,
    annexe: Annexe | None = None,
    others: Callable[[], int] | None = None,
    compares: bool = False,
    traces: bool = False,
    room: int | None = None,
    teller: Teller | None = None,
) -> Iterator[Streaming]:
    """While inside, `module` computes on `card` with the weights where `residency` says.

    Results are the same bit for bit as with everything on the card. What streams is packed into
    buffers of our own on the host, and stays in them afterwards; nothing is ever copied back.
    Parameters stay the objects they are, without gradients; outside calls those that stream show
    NaN (see `Streaming.show_own`), and state dicts have the true values. Inputs on the host are
    moved to the card, results stay there. Other threads wait for one another's calls.

    Args:
        module: on the host, in any state of gradients; which way it is called does not matter.
        card: where it runs.
        residency: planned for `weights`, at the level of blocks or of leaves.
        weights: `tightfit.weigh.module_blocks.blocks_of` this module.
        order: of one call; tells of weights that are used while their owner is not called.
        pins: which masters are held in place for the driver; None is none.
        host: how many bytes of memory masters may newly take; None is what there is. Weights that
            are mapped from files stay in them beyond that, and are read for each use.
        shares: one master for the same weights of the same file, in all sessions that share.
        annexe: room on another card, from which what streams is copied; it is empty afterwards.
        others: the weights rest and come back, so that what is resident has masters, too, which
            are held in place, where that leaves the host so many bytes for others. None is that
            they stay.
        compares: for finding faults: each copy is waited for and compared with its master.
        traces: what each step did is kept in `Streaming.steps`.
        room: what reserved may come to on the card, with all that this process holds there. While
            weights are placed, it is compared with what is allocated; when it would pass the room,
            what is not placed yet is planned again (see `Streaming.replanned`). None: not watched.
        teller: is told of each block as it gets its place.

    Whatever happens inside, the module is whole afterwards and the card has its bytes back.
    Raises `UsageError` for what cannot be streamed, by its path, for a module that is streamed
    already or has parts that are, or that somebody else moves, and for inputs that require
    gradients; what the card raises where it is full; `MemoryShortage` where `room` or `host` is not
    enough; `InputError` in a call that needs weights of a file that has changed.
    """
    with ExitStack() as stack:
        claim(module, stack)
        refuse_strangers(module)
        scan = Scan(module, order=order)
        groups = groups_for(residency, scan, weights)
        with plain_mode():
            tracer = Tracer() if traces else None
            through = _as_they_are if tracer is None else tracer.over
            masters = Masters(
                card, pins=pins, room=host, shares=shares, annexe=annexe, through=through
            )
            placement = Placement(module, card, stack, masters, others=others)
            placement.seat(scan.helds)
            placement.convert(Conversions.of(module), scan.foreign)
            arrangement = Arrangement(
                placement, card, scan, weights, compares=compares, teller=teller
            )
            stack.callback(arrangement.end)
            binding = placement.bind(arrangement.check, tracer=tracer)
            arrangement.begin(residency, groups, binding, room=room)
            placement.bring_tables()
        yield Streaming(arrangement, placement, binding, tracer)


def _as_they_are(lane: Lane, compute: Queue) -> tuple[Lane, Queue]:
    return lane, compute
