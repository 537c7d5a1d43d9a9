"""The quickest way to run a network in strips, in whatever room there is."""

from __future__ import annotations

from dataclasses import dataclass, field

from tightfit.plan.slack import FRAGMENTS, replay
from tightfit.plan.strips.costs import Costs
from tightfit.plan.strips.layout import Layout
from tightfit.plan.strips.network import Network
from tightfit.plan.strips.playing import Playing, Rates
from tightfit.plan.strips.shelf import rounded
from tightfit.plan.strips.spans import taken
from tightfit.plan.strips.stages import Stages

_SHARES = (0.35, 0.6, 0.85)
_RESULT_SHARE = 8
_TRIES = 4
_REMEMBERED = 8
_SMALLER = (1.0, 0.93, 0.86, 0.78, 0.68, 0.55, 0.4, 0.25)
"""Of the room, what is laid out for, until the allocator gets by with the room."""
_LESS = 0.87
_GROWTH = (1.0, 1.1, 1.25, 1.5)
_MANY = 200_000
"""Rows times steps."""


@dataclass
class Laying:
    """Lays out one network for rooms of any size; what it finds out it remembers.

    Attributes:
        network, stages: what is laid out.
        rates: of the card.
        allocator: of the card: it takes more than it hands out.
        ceiling: elements that an operator may give at most; None is no limit.
    """

    network: Network
    stages: Stages
    rates: Rates
    allocator: str = "exact"
    ceiling: int | None = None
    _layouts: dict[tuple[int, bool], Layout | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nothing is laid out yet."""
        self.costs = Costs(self.network, self.stages, self.allocator, self.ceiling)
        self._playing = Playing(self.costs, self.rates)

    def within(self, room: int, *, given_on_card: bool = True) -> Layout | None:
        """The quickest way in `room` bytes of the card beside weights; None where there is none.

        With `given_on_card` the input lies there already, and is none of it.
        """
        key = (room, given_on_card)
        if key not in self._layouts:
            while len(self._layouts) >= _REMEMBERED:
                self._layouts.pop(next(iter(self._layouts)))
            self._layouts[key] = self._within(room, given_on_card)
        return self._layouts[key]

    def least(self, *, given_on_card: bool = True) -> int | None:
        """Bytes of the card below which no layout is found; None where the ceiling leaves none.

        Strips of one row each take the least. What the allocator cannot use is not in it.
        """
        if not self.costs.below_ceiling(given_on_card):
            return None
        fixed, beside, passing = self.costs.fixed(), 0, 0
        for stage in self.stages.stages:
            there = fixed[stage.number] + self.costs.at_once(stage)
            if stage.in_strips:
                rows = self.costs.most_strips(stage)
                if not self.costs.spans_below_ceiling(stage, rows):
                    return None
                there += self.costs.peak(stage, rows)
                passing = max(passing, self.costs.passing(stage, rows))
            beside = max(beside, there)
        return beside + passing

    def _within(self, room: int, given_on_card: bool) -> Layout | None:
        if not self.costs.below_ceiling(given_on_card):
            return None
        shares: tuple[float, ...] = _SHARES
        for smaller in _SMALLER:
            asked = int(room * smaller)
            found = {part: self._shared(asked, part, given_on_card) for part in shares}
            fitting = {part: one for part, one in found.items() if one is not None}
            if not fitting:
                break
            best = min(fitting, key=lambda part: fitting[part].seconds)
            if self._holds(fitting[best], room):
                return fitting[best]
            shares = (best * _LESS,)
        return self._smallest(room, given_on_card)

    def _smallest(self, room: int, given_on_card: bool) -> Layout | None:
        """In as little as there is a layout for: where memory has steps, less may be of more use.

        Of a large network that takes minutes to tell, and nobody would wait for so many strips.
        """
        least = self.least(given_on_card=given_on_card)
        rows = max((extent.rows for extent in self.network.extents), default=0)
        if least is None or least > room or rows * len(self.network.steps) > _MANY:
            return None
        for more in _GROWTH:
            layout = self._shared(int(least * more), 1.0, given_on_card)
            if layout is not None and self._holds(layout, room):
                return layout
        return None

    def _shared(self, room: int, part: float, given_on_card: bool) -> Layout | None:
        """With strips that take no more than a part of what is left beside what must stay."""
        fixed = self.costs.fixed()
        result = self.network.extents[self.network.result]
        result_on_card = result.bytes * _RESULT_SHARE <= room
        if self.ceiling is not None and result.elements > self.ceiling:
            result_on_card = False
        counts: dict[int, int] = {}
        beside = passing = always = 0
        for stage in self.stages.stages:
            there = fixed[stage.number] + self.costs.at_once(stage)
            there += result.bytes if result_on_card else 0
            left, always = room - there, max(always, there)
            counts[stage.number] = 0
            if stage.in_strips:
                count = self.costs.count(stage, int(left * part)) or self.costs.count(stage, left)
                if count is None:
                    return None
                counts[stage.number] = count
                there += self.costs.peak(stage, count)
                passing = max(passing, self.costs.passing(stage, count))
            beside = max(beside, there)
        spare = room - beside - passing
        if spare < 0:
            return None

        def played(shelved: int) -> Layout:
            on_card = self._kept(counts, shelved, given_on_card, result_on_card)
            return self._playing.laid(
                counts, on_card, beside, always, result_on_card, given_on_card
            )

        shelved, layout = float(spare), None
        for _ in range(_TRIES):
            tried = played(int(shelved))
            if tried.card_bytes <= room and (layout is None or tried.seconds < layout.seconds):
                layout = tried
            top = tried.card_arena
            if top >= spare * 0.9 and top <= spare:
                break
            # Strips of what is read make way for what is made, so more fits than the sum says.
            shelved = shelved * min(2.0, spare / top) * 0.98 if top else 0.0
            if not top:
                break
        if layout is None:
            layout = played(0)
        return layout if layout.card_bytes <= room else None

    def _kept(
        self, counts: dict[int, int], spare: int, given_on_card: bool, result: bool
    ) -> dict[int, int]:
        """How many strips of each value stay on the card: what is small and short-lived first."""
        extents, stages = self.network.extents, self.stages
        left = dict.fromkeys(counts, spare)
        found: dict[int, int] = {self.network.given: 1 if given_on_card else 0}
        kept = [value for stage in stages.stages for value in stage.keeps]
        if result:
            found[self.network.result] = counts[stages.made[self.network.result]]
            kept = [value for value in kept if value != self.network.result]

        def weight(value: int) -> int:
            return extents[value].bytes * (stages.last[value] - stages.made[value])

        for value in sorted(kept, key=weight):
            life = [n for n in left if stages.made[value] <= n <= stages.last[value]]
            count = counts[stages.made[value]]
            size = extents[value].bytes
            fits = min(left[number] for number in life)
            number = count if fits >= rounded(size) else max(0, fits * count // size - 1)
            found[value] = number = min(number, count)
            taken_ = -(-size * number // count)
            for stage in life:
                left[stage] -= rounded(taken_)
        return found

    def _holds(self, layout: Layout, room: int) -> bool:
        """Whether the allocator gets by with it: what one strip leaves in pieces, others find."""
        if self.allocator not in FRAGMENTS:
            return True
        moves: list[tuple[int, int]] = []
        for laid in layout.stages:
            count = len(laid.strips)
            for at in sorted({0, 1, count // 2, count - 1} & set(range(count))):
                moves.extend(taken(self.network, laid.stage, laid.strips[at]).moves)
        held = [max(1, layout.card_arena + layout.passing), max(1, layout.always)]
        return replay(moves, self.allocator, held=held, limit=room).holds
