"""One module on its way to a card and back: where each of its weights is, and how it moves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tightfit.card.base import Card
from tightfit.place.converting.converter import Converter
from tightfit.place.streaming.binding import Binding
from tightfit.place.streaming.caches import forget_cached
from tightfit.place.streaming.groups import Group
from tightfit.place.streaming.husk import Husk
from tightfit.place.streaming.inventory import Inventory
from tightfit.place.streaming.master import Master
from tightfit.place.streaming.masters import Masters
from tightfit.place.streaming.passing import Passing
from tightfit.place.streaming.placeholders import Placeholders
from tightfit.place.streaming.ring import Copies, Ring
from tightfit.place.streaming.scratch import Kept, Scratch
from tightfit.place.streaming.seat import Seat
from tightfit.place.streaming.store import Key, Store, key_of
from tightfit.place.streaming.tables import Tables
from tightfit.place.streaming.tracing import Tracer
from tightfit.weigh.conversions import Conversions
from tightfit.weigh.shells import Inner, is_wrapper, outers_of
from tightfit.weigh.tensors import Held, Kind, identity, walk


@dataclass(eq=False)
class _Resident:
    """A group on the card: its own buffer, which goes to the driver alone.

    Attributes:
        group: which.
        buffer: its bytes; packed, if `master` is there.
        master: of what is packed, else None.
        kept: how calls reach what is packed.
    """

    group: Group
    buffer: torch.Tensor
    master: Master | None = None
    kept: Kept | None = None


@dataclass(eq=False)
class _OpenRing:
    """A ring, and what passes through it, in order."""

    ring: Ring
    keys: tuple[Key, ...]
    slots: int


class Placement:
    """What is done to a module, its tensors and a card, and how it is undone.

    Each tensor is in one of three places: with its master on the host (at first and at the end),
    on the card for good (`stay`), or away (`pass_through`). The books are right after each step,
    also after one that failed for want of memory. What is left at the end is undone by the stack,
    and the module is whole.

    Attributes:
        host: the memory that masters take.
        store: of the masters.
        scratch: what packed weights are unpacked into; None while none are.
        converter: of weights that are used in another dtype than they are stored in; None before
            they are looked for.
        past: copies of the rings that are closed.
        tables: what modules keep as plain attributes.
    """

    def __init__(
        self,
        module: nn.Module,
        card: Card,
        stack: ExitStack,
        host: Masters,
        *,
        others: Callable[[], int] | None = None,
    ) -> None:
        """`stack` is closed by the caller; `others` as `streamed` has it."""
        self._module = module
        self._card = card
        self._stack = stack
        self.host = host
        self._seats: dict[int, Seat] = {}
        self._husks: list[Husk] = []
        self._own: list[Seat] = []
        self._heads = dict(module.named_modules())
        self._others = others
        self._placeholders = Placeholders(card.device)
        self._lane = host.lane
        self._compute = host.compute
        self._residents: dict[Key, _Resident] = {}
        self._rings: dict[int, _OpenRing] = {}
        self.scratch: Scratch | None = None
        self.store = Store(card, host, self._seats, self.hide, returns=others is not None)
        self.converter: Converter | None = None
        self.past: list[Copies] = []
        self.tables = Tables(module, card.device)
        if card.kind == "cuda":  # it would choose other algorithms, other bits, by what is free
            backend: Any = torch.backends.cudnn
            stack.callback(setattr, backend, "benchmark", backend.benchmark)
            backend.benchmark = False
        stack.callback(forget_cached, module)
        stack.callback(_put_back, list(walk(module)), card.device)
        stack.callback(self.tables.put_back)
        stack.callback(self._placeholders.clear)
        stack.callback(self.store.forget_unpacked)
        stack.callback(_restore, self._seats, self._husks)
        stack.callback(self._residents.clear)
        stack.callback(self.close_scratch)
        stack.callback(self.close_conversion)
        stack.callback(host.close)
        stack.callback(self.store.close)
        stack.callback(self.close_rings, keep=())
        stack.callback(host.stop)

    # Where everything is

    @property
    def resident_bytes(self) -> int:
        """Of the groups on the card."""
        return sum(each.buffer.nbytes for each in self._residents.values())

    @property
    def rings(self) -> list[Ring]:
        """By number."""
        return [self._rings[number].ring for number in sorted(self._rings)]

    def ring(self, number: int) -> Ring:
        """The open one with this number."""
        return self._rings[number].ring

    @property
    def pinned_bytes(self) -> int:
        """Of masters that the driver holds in place."""
        return self.host.pins.bytes

    def master(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a tensor of the module, on the host."""
        return self._seats[id(tensor)].master

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for a tensor of the module where its values are not needed."""
        return self._seats[id(tensor)].like

    def is_resident(self, group: Group) -> bool:
        """Whether `group` is on the card."""
        return key_of(group) in self._residents

    # To the host

    def seat(self, helds: Iterable[Held]) -> None:
        """From here on these tensors are managed: none has gradients.

        What they show while they are away is made at once: it must not be in the way when memory
        is short.
        """
        helds = list(helds)
        for held in helds:
            if id(held.tensor) not in self._seats:
                seat = self._seats[id(held.tensor)] = Seat(held.tensor, held.path)
                self._placeholders.like(seat.like)
                if held.owner is self._module and not isinstance(held, Inner):
                    self._own.append(seat)
        for outer in outers_of(helds):
            if is_wrapper(outer.tensor):
                self._husks.append(Husk(outer.tensor, outer.path, self._card.device))

    def convert(self, what: Conversions, foreign: Mapping[str, Iterable[str]]) -> None:
        """From here on these weights, which have seats, are converted for each use.

        `foreign` are uses of tensors while their owner is not called.
        """
        self.converter = Converter(
            self._card,
            self._compute,
            self._placeholders,
            what,
            foreign,
            self._heads,
            self._seats,
        )

    def ready(self, groups: Iterable[Group]) -> list[Group]:
        """Those of `groups`, which will stay, whose masters are to be made for when they come back.

        All or none: where the host is short, weights are copied from where they lie.
        """
        coming = [each for each in groups if not each.packed and self.store.find(each) is None]
        if self._others is None or not self.store.has_room_for(coming, beside=self._others()):
            return []
        return coming

    def unpin_idle(self) -> None:
        """Hold in place only what passes through rings; between calls, when all copies are done.

        And what will come back from rest.
        """
        if self._others is not None:
            return
        self.store.unpin(but=[key for each in self._rings.values() for key in each.keys])

    # To the card and off it

    def stay(self, group: Group) -> None:
        """Put `group` on the card until it is dropped, in a buffer of its own."""
        key = key_of(group)
        if key in self._residents:
            return
        if group.packed:
            self._keep_packed(group)
            return
        buffer = torch.empty(group.layout.bytes, dtype=torch.uint8, device=self._card.device)
        views = group.layout.views(buffer)
        master = self.store.find(group)
        if master is not None and group.layout.bytes:
            self._bring(master, buffer)
        done: set[int] = set()
        for seat, at in self.store.seats_of(group):
            if master is None and at not in done:
                views[at].copy_(seat.master)
                done.add(at)
            seat.bring(views[at])
        self._residents[key] = _Resident(group, buffer)

    def _keep_packed(self, group: Group) -> None:
        """Put `group` on the card as it is stored; its tensors show that they are away."""
        master = self.store.take(group)
        buffer = torch.empty(master.bytes, dtype=torch.uint8, device=self._card.device)
        self._bring(master, buffer)
        self.hide(group)
        self._residents[key_of(group)] = _Resident(group, buffer, master)

    def _bring(self, master: Master, buffer: torch.Tensor) -> None:
        """Copy what was streamed so far; what is not in memory is read as it is for each use."""
        if master.whole is not None and master.parked is None:
            buffer.copy_(master.whole)
            return
        self._lane.wait(self._compute.mark())
        try:
            master.send(self._lane, buffer)
            self._compute.wait(self._lane.mark())
        except BaseException:
            self._lane.drain()  # the buffer goes
            raise

    def drop_all_but(self, groups: Iterable[Group]) -> int:
        """Take all other groups off the card; their masters never left. The bytes freed."""
        kept = {key_of(group) for group in groups}
        freed = 0
        for key in [key for key in self._residents if key not in kept]:
            gone = self._residents[key]
            self.hide(gone.group)
            if gone.master is not None and self.scratch is not None:
                self.scratch.forget(gone.master)
            if gone.kept is not None:
                gone.kept.buffer = None  # calls are bound to it until they are bound anew
            del self._residents[key]
            freed += gone.buffer.nbytes
        return freed

    def hide(self, group: Group) -> None:
        """Let the tensors of `group` show that they are away."""
        for seat, _ in self.store.seats_of(group):
            seat.bring(self._placeholders.like(seat.like))

    def show_own(self) -> None:
        """Between calls: what the module itself owns, and is away, shows its values on the host.

        Pipelines read such weights themselves, and are given no NaN.
        """
        there = {
            id(seat.tensor)
            for each in self._residents.values()
            if each.master is None
            for seat, _ in self.store.seats_of(each.group)
        }
        for seat in self._own:
            if id(seat.tensor) not in there:
                seat.show()

    def hide_own(self) -> None:
        """It shows that it is away, as it has to before a call; harmless when repeated."""
        for seat in self._own:
            if seat.shown:
                seat.bring(self._placeholders.like(seat.like))

    def close_rings(self, *, keep: Collection[int]) -> int:
        """Drain all rings but those of these numbers, and free their slots; how many bytes."""
        gone = [number for number in self._rings if number not in keep]
        freed = 0
        try:
            if gone:
                self._card.sync()
        finally:
            for number in gone:
                ring = self._rings[number].ring
                freed += ring.bytes
                ring.close()
                self.past.append(self._rings.pop(number).ring.copies)
            if gone and self.scratch is not None:
                self.scratch.forget_stored()
        return freed

    def open_scratch(self, groups: Iterable[Group]) -> None:
        """Memory that those of `groups` that are packed are unpacked into; none where none is."""
        size = max((group.layout.bytes for group in groups if group.packed), default=0)
        if self.scratch is None and size:
            self.scratch = Scratch(self._card, self._compute, size)

    def close_scratch(self) -> int:
        """Let that memory go: the card is done with it, and no ring is open that unpacks into it.

        How many bytes.
        """
        freed = self.scratch_bytes
        if self.scratch is not None:
            self.scratch.close()
            self.scratch = None
        return freed

    @property
    def scratch_bytes(self) -> int:
        """Of what packed weights are unpacked into."""
        return 0 if self.scratch is None else self.scratch.bytes

    def open_conversion(self, size: int) -> None:
        """Memory of that size that weights are converted into, if any are."""
        if self.converter is not None:
            self.converter.open(size)

    def close_conversion(self) -> int:
        """Let that memory go, as `close_scratch` does."""
        return 0 if self.converter is None else self.converter.close()

    @property
    def conversion_bytes(self) -> int:
        """Of what weights are converted into."""
        return 0 if self.converter is None else self.converter.bytes

    def taken_by(self, group: Group) -> int:
        """On the card, by `group`, which is there."""
        return self._residents[key_of(group)].buffer.nbytes

    def fits_ring(self, number: int, groups: Sequence[Group], *, slots: int) -> bool:
        """Whether a ring is open for exactly these groups with so many slots."""
        found = self._rings.get(number)
        if found is None or found.slots != slots:
            return False
        return found.keys == tuple(key_of(group) for group in groups)

    def open_ring(
        self, number: int, groups: Sequence[Group], *, slots: int, compares: bool
    ) -> None:
        """Slots that `groups`, packed, pass through."""
        arenas = [self.store.take(group) for group in groups]
        self.store.pin_for(groups, before=self._residents)
        ring = Ring(
            self._card,
            self._lane,
            self._compute,
            arenas,
            slots=slots,
            scratch=self.scratch,
            compares=compares,
        )
        keys = tuple(key_of(group) for group in groups)
        self._rings[number] = _OpenRing(ring, keys, slots)

    def passing(self, group: Group) -> Passing:
        """How a hidden `group` passes through its ring, which is open, or is unpacked."""
        each = self.store.seats_of(group)
        away = [self._placeholders.like(seat.like) for seat, _ in each]
        through: Ring | Kept
        if group.stays:
            assert self.scratch is not None
            there = self._residents[key_of(group)]
            through = there.kept = Kept(there.buffer, self.scratch)
        else:
            through = self._rings[group.ring].ring
        return Passing(group, self.store.take(group), through, each, away, self._heads[group.head])

    def bring_tables(self) -> None:
        """Put tables that modules keep as plain attributes on the card."""
        self.tables.bring({identity(seat.like) for seat in self._seats.values()})

    def rest_tables(self) -> None:
        """Let the card go of them, and of what methods remember there."""
        self.tables.go_home(self._seats)
        forget_cached(self._module)

    def bind(self, begins: Callable[[], None], *, tracer: Tracer | None = None) -> Binding:
        """From here on calls find their weights; `begins` may refuse each outermost one."""
        binding = Binding(
            self._module,
            self._card,
            self._compute,
            (),
            self._seats,
            begins=begins,
            tracer=tracer,
            converter=self.converter,
        )
        self._stack.callback(binding.rebind, ())
        self._stack.callback(binding.close)
        return binding

    def inventory(self, helds: Iterable[Held]) -> Inventory:
        """What the module holds now, between two calls."""
        return Inventory(self._module, helds, self._card.device)


@contextmanager
def plain_mode() -> Iterator[None]:
    """Whatever the caller's mode: what is made here is written to in every mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _restore(seats: dict[int, Seat], husks: Sequence[Husk]) -> None:
    with plain_mode():
        for husk in husks:
            husk.restore()
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
