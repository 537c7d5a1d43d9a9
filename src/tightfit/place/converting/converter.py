"""Memory on the card that weights are converted into, just before the layers that own them run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from tightfit.card.base import Card
from tightfit.card.lanes import Mark, Queue
from tightfit.place.converting.scaling import convert
from tightfit.place.converting.uses import Room, Use, room_of, uses_of
from tightfit.place.streaming.brought import Brought
from tightfit.place.streaming.placeholders import Placeholders
from tightfit.place.streaming.running import Call
from tightfit.place.streaming.seat import Seat
from tightfit.weigh.conversions import Conversions, Converted


@dataclass(frozen=True, eq=False)
class _Part:
    """One weight of a layer in one dtype.

    Attributes:
        weight: with its scale.
        seat: of the tensor that the module holds.
        copy: what it is converted into; None where it is used as it is stored.
        away: what the tensor shows before and after, while calls are under way.
    """

    weight: Converted
    seat: Seat
    copy: torch.Tensor | None
    away: torch.Tensor

    def bring(self) -> None:
        """The tensor of the module is what is computed with."""
        stored, scale = self.seat.stored, self.weight.scale
        assert stored is not None
        if self.copy is None:
            self.seat.tensor.data = stored
            return
        convert(
            stored,
            self.copy,
            scale=None if scale is None else scale.tensor,
            grid=self.weight.grid,
        )
        self.seat.tensor.data = self.copy


class Conversion(Brought):
    """The weights of one layer, which are converted for each of its calls."""

    def __init__(self, use: Use, head: nn.Module, seats: Sequence[Seat], owner: Converter) -> None:
        """`seats` are of the weights of `use`, in their order."""
        super().__init__(use.layer.name, use.anchors, head)
        self.use = use
        self.seats = tuple(seats)
        self._owner = owner
        self._users: set[Call] = set()

    def is_full(self) -> bool:
        """Never: there is room for whatever may be in use at once."""
        return False

    def bring(self, call: Call) -> None:
        """Queue the conversion, unless it is in use already."""
        first = not self._users
        self._users.add(call)
        if first:
            self._owner.write(self)

    def let_go(self, call: Call) -> None:
        """The copy is gone when the last use ends; the tensors show that they are away."""
        if call in self._users:
            self._users.discard(call)
            if not self._users:
                self._owner.clear(self)


class Turn:
    """While an outermost call is under way, weights to be converted look as they will be used.

    Code that asks for the dtype of a layer's weight before it calls it sees what it would see of a
    module that is stored in that dtype; the values are NaN until the layer is called.
    """

    def __init__(self, seats: Sequence[Seat], away: Sequence[torch.Tensor]) -> None:
        """`away` are what `seats` are to show."""
        self._seats = seats
        self._away = away
        with torch.inference_mode(False):
            self._rests = [seat.tensor.data for seat in seats]

    def begin(self) -> None:
        """From here on."""
        for seat, rest, away in zip(self._seats, self._rests, self._away, strict=True):
            seat.stored = rest
            seat.tensor.data = away

    def end(self) -> None:
        """As it was, between calls."""
        for seat, rest in zip(self._seats, self._rests, strict=True):
            seat.tensor.data = rest
            seat.stored = None


class Converter:
    """One buffer that the copies of all layers share, as far as they are not in use together.

    One thread at a time; all of it is queued where compute is.

    Attributes:
        conversions: one for each layer.
        converted: how often layers were.
        grown: how often the buffer was made anew in mid-run, for a dtype that was not planned.
    """

    def __init__(
        self,
        card: Card,
        compute: Queue,
        placeholders: Placeholders,
        what: Conversions,
        foreign: Mapping[str, Iterable[str]],
        heads: Mapping[str, nn.Module],
        seats: Mapping[int, Seat],
    ) -> None:
        """`seats` by the ids of the tensors of a module, `heads` its parts by their paths."""
        self._card = card
        self._compute = compute
        self._placeholders = placeholders
        self._what = what
        self._uses = uses_of(what.layers, foreign)
        self.conversions = tuple(
            Conversion(use, heads[use.head], [seats[id(each.tensor)] for each in use.weights], self)
            for use in self._uses
        )
        once = {id(seat): seat for each in self.conversions for seat in each.seats}
        self._seats = tuple(once.values())
        for seat in self._seats:
            seat.converts = True
        self._buffer: torch.Tensor | None = None
        self._dtype: torch.dtype | None = None
        self._rooms: dict[torch.dtype, Room] = {}
        self._parts: dict[Conversion, tuple[_Part, ...]] = {}
        self._away: tuple[torch.Tensor, ...] = ()
        self._free: Mark | None = None
        self.converted = 0
        self.grown = 0

    @property
    def bytes(self) -> int:
        """Of the buffer."""
        return 0 if self._buffer is None else self._buffer.nbytes

    def open(self, size: int) -> None:
        """Take `size` bytes, if none are there yet; what the card raises where it is full."""
        if self._buffer is None and size and self.conversions:
            with _plain():
                self._buffer = torch.empty(size, dtype=torch.uint8, device=self._card.device)

    def close(self) -> int:
        """Let the memory go; the card has to be done with it. How many bytes."""
        freed = self.bytes
        self._buffer = self._dtype = None
        self._parts.clear()
        self._away = ()
        return freed

    def turn(self, given: Iterable[object]) -> Turn:
        """For an outermost call that is `given` these, in the dtype that it computes in."""
        self._settle(self._what.dtype(given))
        return Turn(self._seats, self._away)

    def write(self, conversion: Conversion) -> None:
        """Queue the conversion of what its seats have stored."""
        if self._free is not None:
            self._compute.wait(self._free)
        with torch.inference_mode(False):  # views that are made in it cannot be of normal tensors
            for part in self._parts[conversion]:
                part.bring()
        self.converted += 1

    def clear(self, conversion: Conversion) -> None:
        """Its copies are overwritten next."""
        self._free = self._compute.mark(again=self._free)
        for part in self._parts[conversion]:
            part.seat.tensor.data = part.away

    def _settle(self, dtype: torch.dtype) -> None:
        """From here on, copies are in `dtype`."""
        if dtype == self._dtype:
            return
        room = self._rooms.get(dtype)
        if room is None:
            room = self._rooms[dtype] = room_of(self._uses, dtype)
        if room.bytes > self.bytes:
            self._card.sync()
            self.close()
            self.open(room.bytes)
            self.grown += 1
        self._dtype = None
        with _plain():
            self._parts = {each: self._parts_of(each, dtype, room) for each in self.conversions}
        away = {id(p.seat): p.away for parts in self._parts.values() for p in parts}
        self._away = tuple(away[id(seat)] for seat in self._seats)
        self._dtype = dtype

    def _parts_of(self, each: Conversion, dtype: torch.dtype, room: Room) -> tuple[_Part, ...]:
        use = each.use
        buffer = self._buffer
        if buffer is None:
            buffer = torch.empty(0, dtype=torch.uint8, device=self._card.device)
        part = buffer[room.starts[use.layer.name] : room.ends[use.layer.name]]
        copies = iter(use.layout(dtype).views(part))
        told = zip(use.weights, each.seats, use.dtypes(dtype), use.needs_copy(dtype), strict=True)
        return tuple(
            _Part(
                weight,
                seat,
                next(copies) if needs_copy else None,
                self._placeholders.of(used, seat.tensor.shape),
            )
            for weight, seat, used, needs_copy in told
        )


@contextmanager
def _plain() -> Iterator[None]:
    """Whatever the caller's mode: what is made here is written to in every mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield
