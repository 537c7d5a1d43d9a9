"""Strips as a way of a stage: they take as much of the room as there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tightfit.card.outlook import Outlook
from tightfit.plan.demand import Way
from tightfit.plan.figure import NOTHING, UNKNOWN, Figure
from tightfit.plan.size import Size
from tightfit.plan.strips.laying import Laying
from tightfit.plan.strips.shares import STRIPS, laid, taken
from tightfit.weigh.workspace import LIBRARIES


@dataclass(frozen=True)
class StripsTold:
    """How one item is run in strips.

    Attributes:
        laying: lays it out for a room, on a card that hands out what it takes.
        given: bytes of the item.
    """

    laying: Laying
    given: int


@dataclass
class StripsGauge:
    """Tells the strips of one stage of one network.

    Attributes:
        call: tells those of an item of a size; None where there are none.
    """

    call: Callable[[Size], StripsTold | None]
    _known: dict[Size, StripsTold | None] = field(default_factory=dict)
    _least: dict[Size, int | None] = field(default_factory=dict)

    def way(self, size: Size, card: Outlook, *, slack: float) -> Way:
        """The way for items of `size`, worked out once a room is known.

        `slack` is what the allocator takes above what it hands out, as a share of that.
        """

        def cut(room: int) -> Way | None:
            libraries = LIBRARIES if card.scratch else 0
            told = self._told(size)
            if told is None:
                return None
            usable = int(max(0, room - libraries) / (1 + slack))
            layout = laid(told.laying, usable, given=told.given)
            if layout is not None:
                tensors, host = layout.card_bytes + told.given, Figure(layout.host_bytes)
            else:
                least = self._at_least(size, told)
                if least is None:
                    return None
                tensors, host = taken(least, given=told.given), UNKNOWN
            return Way(
                STRIPS,
                Figure(tensors),
                Figure(libraries) if libraries else NOTHING,
                Figure(int(tensors * slack)) if slack else NOTHING,
                host=host,
            )

        return Way(STRIPS, UNKNOWN, cut=cut)

    def _told(self, size: Size) -> StripsTold | None:
        if size not in self._known:
            self._known[size] = self.call(size)
        return self._known[size]

    def _at_least(self, size: Size, told: StripsTold) -> int | None:
        if size not in self._least:
            self._least[size] = told.laying.least()
        return self._least[size]
