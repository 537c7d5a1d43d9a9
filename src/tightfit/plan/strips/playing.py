"""A layout played through: when each strip that is kept comes and goes, and where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.plan.strips.costs import Costs
from tightfit.plan.strips.layout import SLOTS, LaidStage, Layout
from tightfit.plan.strips.reach import share
from tightfit.plan.strips.shelf import Shelf, rounded
from tightfit.plan.strips.spans import Strip, work
from tightfit.plan.strips.stages import Stage


@dataclass(frozen=True)
class Rates:
    """What a card does in a second.

    Attributes:
        flops: floating-point operations.
        link: bytes to the card, and as many from it at the same time.
        launch: seconds that one operator takes at least.
    """

    flops: float
    link: float
    launch: float = 10e-6


@dataclass(frozen=True)
class Playing:
    """Of the strips of one network, on a card that is so fast."""

    costs: Costs
    rates: Rates

    def laid(
        self,
        counts: dict[int, int],
        on_card: dict[int, int],
        beside: int,
        always: int,
        result_on_card: bool,
        given_on_card: bool,
    ) -> Layout:
        """Play it through: when each strip that is kept comes and goes, and where it lies."""
        network, extents = self.costs.network, self.costs.network.extents
        card, host = Shelf(), Shelf()
        offsets: dict[tuple[int, int], int] = {}
        dead: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
        there: dict[tuple[int, int], int] = {}  # what is kept now, and its bytes
        up = down = passing = 0
        flops = again = seconds = 0.0
        laid: list[LaidStage] = []
        counts_of = {value: counts[self.costs.stages.made[value]] for value in on_card
                     if value != network.given}  # fmt: skip
        counts_of[network.given] = 1
        if not given_on_card:
            offsets[network.given, 0] = host.take(extents[network.given].bytes)
            there[network.given, 0] = extents[network.given].bytes

        def drop(gone: tuple[tuple[int, int], ...]) -> None:
            for key in gone:
                shelf = card if key[1] < on_card[key[0]] else host
                shelf.give(offsets[key], there.pop(key))

        for stage in self.costs.stages.stages:
            number = stage.number
            if not stage.in_strips:
                seconds += self._seconds(stage, (), 0, 0)
                laid.append(LaidStage(stage, ()))
                dead[number, 0] = self._gone(there, number, 0, None, counts_of)
                drop(dead[number, 0])
                continue
            strips = self.costs.strips(stage, counts[number])
            brought = sent = load = store = 0
            for index, strip in enumerate(strips):
                for value in stage.loads:
                    size = self._from_host(value, strip, on_card, counts_of)
                    brought += size
                    load = max(load, size)
                for value in stage.keeps:
                    if value == network.result:
                        continue
                    begin, end = strip.own[value]
                    size = there[value, index] = extents[value].of(end - begin)
                    if index < on_card[value]:
                        offsets[value, index] = card.take(size)
                        continue
                    offsets[value, index] = host.take(size)
                    sent += size
                    store = max(store, size)
                dead[number, index] = self._gone(there, number, index, strips, counts_of)
                drop(dead[number, index])
            if network.result in stage.keeps:
                sent += extents[network.result].bytes
                if not result_on_card:
                    sizes = [strip.own[network.result] for strip in strips]
                    most = max(end - begin for begin, end in sizes)
                    store = max(store, extents[network.result].of(most))
            laid.append(LaidStage(stage, strips, rounded(load), rounded(store)))
            passing = max(passing, SLOTS * (rounded(load) + rounded(store)))
            done = work(network, stage, strips)
            once = float(sum(network.steps[at].flops for at in stage.steps))
            flops, again = flops + done, again + max(0.0, done - once)
            up, down = up + brought, down + sent
            seconds += self._seconds(stage, strips, brought, sent)
        return Layout(
            stages=tuple(laid),
            on_card=on_card,
            offsets=offsets,
            dead=dead,
            host_bytes=host.top,
            card_arena=card.top,
            passing=passing,
            card_bytes=beside + card.top + passing,
            always=always,
            result_on_card=result_on_card,
            up=up,
            down=down,
            flops=flops,
            again=again,
            seconds=seconds,
            counts=counts_of,
            last=self.costs.stages.last,
        )

    def _from_host(
        self, value: int, strip: Strip, on_card: dict[int, int], counts: dict[int, int]
    ) -> int:
        """Bytes of what `strip` loads of `value` that lie on the host."""
        span = strip.spans.get(value)
        if span is None:
            return 0
        extent, count = self.costs.network.extents[value], counts[value]
        first = share(extent.rows, on_card[value], count)[0] if on_card[value] < count else span[1]
        return extent.of(max(0, span[1] - max(span[0], first)))

    def _gone(
        self,
        there: dict[tuple[int, int], int],
        number: int,
        index: int,
        strips: Sequence[Strip] | None,
        counts: dict[int, int],
    ) -> tuple[tuple[int, int], ...]:
        """Kept strips that nobody reads after strip `index` of stage `number`."""
        last_strip = strips is None or index == len(strips) - 1
        gone = []
        for value, place in there:
            if self.costs.stages.last.get(value, -1) > number or value == self.costs.network.result:
                continue
            if self.costs.stages.last[value] < number or last_strip:
                gone.append((value, place))
                continue
            assert strips is not None
            end = share(self.costs.network.extents[value].rows, place, counts[value])[1]
            if not self._reads_below(strips[index + 1], value, end):
                gone.append((value, place))
        return tuple(gone)

    @staticmethod
    def _reads_below(strip: Strip, value: int, end: int) -> bool:
        """Whether the next strip (and so any after it) reads rows before `end`."""
        span = strip.spans.get(value)
        return span is not None and span[0] < end

    def _seconds(self, stage: Stage, strips: Sequence[Strip], up: int, down: int) -> float:
        flops = (
            work(self.costs.network, stage, strips)
            if strips
            else float(sum(self.costs.network.steps[at].flops for at in stage.steps))
        )
        launches = len(stage.steps) * max(1, len(strips))
        compute = max(flops / self.rates.flops, launches * self.rates.launch)
        return max(compute, up / self.rates.link, down / self.rates.link)
