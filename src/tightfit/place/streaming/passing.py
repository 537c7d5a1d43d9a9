"""A group of weights that is copied, or unpacked, for the calls that need it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tightfit.place.streaming.brought import Brought
from tightfit.place.streaming.groups import Group
from tightfit.place.streaming.master import Master
from tightfit.place.streaming.ring import Ring
from tightfit.place.streaming.running import Call
from tightfit.place.streaming.scratch import Kept
from tightfit.place.streaming.seat import Seat

_NOTHING: tuple[torch.Tensor, ...] = ()


class Passing(Brought):
    """A group that passes through a ring, or is unpacked where it is.

    Attributes:
        group: its tensors and anchors.
        shown: the tensors that its seats show; empty while nobody uses it.
    """

    is_traced = True

    def __init__(
        self,
        group: Group,
        arena: Master,
        ring: Ring | Kept,
        seats: Sequence[tuple[Seat, int]],
        away: Sequence[torch.Tensor],
        head: nn.Module,
    ) -> None:
        """What `arena` holds passes through `ring`.

        `seats` are of all its tensors, each with its index among those of `arena`, and `away` is
        what each shows while nobody uses the group. What is converted is kept aside for that.
        """
        super().__init__(group.name, group.anchors, head)
        self.group = group
        self.shown = _NOTHING
        self._arena = arena
        self._ring = ring
        plain = [at for at, (seat, _) in enumerate(seats) if not seat.converts]
        self._tensors = tuple(seats[at][0].tensor for at in plain)
        self._places = tuple(seats[at][1] for at in plain)
        self._away = tuple(away[at] for at in plain)
        self._aside = tuple(
            (seat, place, none)
            for (seat, place), none in zip(seats, away, strict=True)
            if seat.converts
        )

    def is_full(self) -> bool:
        """Whether so much is in use that bringing it would need another slot or scratch."""
        return self._ring.is_full_for(self._arena)

    def bring(self, call: Call) -> None:
        """Its seats show the tensors of a slot."""
        views = self._ring.take(self._arena, call)
        if self.shown is views:
            return
        self.shown = _NOTHING
        for tensor, at in zip(self._tensors, self._places, strict=True):
            tensor.data = views[at]
        for seat, at, _ in self._aside:
            seat.stored = views[at]
        self.shown = views

    def let_go(self, call: Call) -> None:
        """Its seats show that the weights are away, if this was the last use.

        A slot that is left at the end of a layer is kept a while where others of the group follow.
        """
        lingers = call.module is not self.head and len(self.anchors) > 1
        if self._ring.leave(self._arena, call, lingers=lingers):
            for tensor, placeholder in zip(self._tensors, self._away, strict=True):
                tensor.data = placeholder
            for seat, _, placeholder in self._aside:
                seat.stored = placeholder
            self.shown = _NOTHING
