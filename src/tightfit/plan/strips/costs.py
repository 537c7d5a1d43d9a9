"""What the stages of a network take of a card, in any number of strips."""

from __future__ import annotations

from dataclasses import dataclass, field

from tightfit.plan.slack import FRAGMENTS, least_reserved
from tightfit.plan.strips.layout import SLOTS
from tightfit.plan.strips.network import Kind, Network
from tightfit.plan.strips.shelf import rounded
from tightfit.plan.strips.spans import Strip, Taken, at_once, strip_of, taken
from tightfit.plan.strips.stages import Stage, Stages

_FEW = 4
_MARGIN = 4
"""Rows beside a span, which an operator makes and nobody takes."""


@dataclass
class Costs:
    """Of one network; what it finds out it remembers.

    Attributes:
        network, stages: whose.
        allocator: of the card: it takes more than it hands out.
        ceiling: elements that an operator may give at most; None is no limit.
    """

    network: Network
    stages: Stages
    allocator: str = "exact"
    ceiling: int | None = None
    _strips: dict[tuple[int, int], tuple[Strip, ...]] = field(default_factory=dict)
    _taken: dict[tuple[int, int], Taken] = field(default_factory=dict)
    _fragments: dict[tuple[int, int], float] = field(default_factory=dict)
    _beside: dict[int, int] = field(default_factory=dict)

    def passing(self, stage: Stage, count: int) -> int:
        """Bytes of the buffers for copies."""
        told = self.played(stage, count)
        return SLOTS * (rounded(told.load) + rounded(told.store))

    def fixed(self) -> dict[int, int]:
        """Bytes that lie on the card during each stage, whatever is decided: results of stages
        before it that run on all rows at once."""
        extents, stages = self.network.extents, self.stages
        lives: dict[int, tuple[int, int, int]] = {}  # memory -> made, last read, bytes
        for value, made in stages.made.items():
            last = stages.last.get(value)
            if last is None or made % 2 == 0:
                continue
            memory, size = extents[value].memory, rounded(extents[value].bytes)
            first, until, known = lives.get(memory, (made, last, size))
            lives[memory] = (min(first, made), max(until, last), max(known, size))
        return {
            stage.number: sum(
                size for made, last, size in lives.values() if made < stage.number <= last
            )
            for stage in stages.stages
        }

    def at_once(self, stage: Stage) -> int:
        """Bytes that a stage takes of the card beside what lies there when it begins."""
        if stage.number in self._beside:
            return self._beside[stage.number]
        if stage.in_strips:
            extents = self.network.extents
            size = sum(rounded(extents[value].bytes) for value in stage.gathers)
        else:
            size = at_once(self.network, stage, self.stages.last)
        self._beside[stage.number] = size
        return size

    def count(self, stage: Stage, room: int) -> int | None:
        """The fewest strips that take no more than `room`, fragments included."""
        rows = self.most_strips(stage)
        count = 1
        while True:
            passing, below = self.passing(stage, count), self.spans_below_ceiling(stage, count)
            size = self.played(stage, count).peak + passing
            if size <= room:
                size = self.peak(stage, count) + passing
            if size <= room and below:
                return count
            if count >= rows:
                return None
            guess = int(count * min(4.0, max(1.0, size / max(1, room))))
            count = min(rows, max(count + 1, guess))

    def peak(self, stage: Stage, count: int) -> int:
        """What the allocator takes for one strip of `count`, as the one in the middle tells."""
        peak = self.played(stage, count).peak
        if self.allocator not in FRAGMENTS:
            return peak
        key = stage.number, count
        if key not in self._fragments:
            told = taken(self.network, stage, strip_of(self.network, stage, count // 2, count))
            least = least_reserved(told.moves, self.allocator)
            self._fragments[key] = max(1.0, least / max(1, told.peak))
        return int(peak * self._fragments[key])

    def below_ceiling(self, given_on_card: bool) -> bool:
        """Whether what is never cut, and the input, are."""
        if self.ceiling is None:
            return True
        whole = [self.network.given] if given_on_card else []
        for stage in self.stages.stages:
            whole += stage.gathers
            if not stage.in_strips:
                whole += [v for at in stage.steps for v in self.network.steps[at].makes]
        return all(self.network.extents[value].elements <= self.ceiling for value in whole)

    def most_strips(self, stage: Stage) -> int:
        """So many that each has a row of everything that is kept or added up."""
        network = self.network
        shared = list(stage.keeps)
        for at in stage.steps:
            if network.steps[at].kind is Kind.SUMS:
                shared += [use.value for use in network.steps[at].uses]
        return min((network.extents[value].rows for value in shared), default=1)

    def spans_below_ceiling(self, stage: Stage, count: int) -> bool:
        """Whether every strip of `count` makes no more elements at once than the ceiling says."""
        if self.ceiling is None:
            return True
        extents = self.network.extents
        for index in self._some(count):
            for value, (begin, end) in strip_of(self.network, stage, index, count).spans.items():
                extent = extents[value]
                rows = end - begin + (_MARGIN if count > 1 else 0)
                if extent.elements * rows > self.ceiling * max(1, extent.rows):
                    return False
        return True

    def strips(self, stage: Stage, count: int) -> tuple[Strip, ...]:
        """Every one of `count`."""
        key = (stage.number, count)
        if key not in self._strips:
            self._strips[key] = tuple(
                strip_of(self.network, stage, index, count) for index in range(count)
            )
        return self._strips[key]

    def played(self, stage: Stage, count: int) -> Taken:
        """The most that any of `count` strips takes."""
        key = (stage.number, count)
        if key not in self._taken:
            each = [
                taken(self.network, stage, strip_of(self.network, stage, index, count))
                for index in self._some(count)
            ]
            self._taken[key] = Taken(
                max(one.peak for one in each),
                max(one.load for one in each),
                max(one.store for one in each),
                (),
            )
        return self._taken[key]

    @staticmethod
    def _some(count: int) -> list[int]:
        """Strips that tell of all `count`: those at the edges, and inner ones; where there are few,
        every one, since some have a row more than others."""
        inner = range(0, count, max(1, count // _FEW))
        return sorted({*inner, min(1, count - 1), count // 2, count - 1})
