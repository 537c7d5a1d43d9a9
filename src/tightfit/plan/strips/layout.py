"""The plan of a network in strips: how high they are, and what is kept on the card or the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tightfit.plan.slack import FRAGMENTS, least_reserved, replay
from tightfit.plan.strips.network import Kind, Network
from tightfit.plan.strips.reach import share
from tightfit.plan.strips.shelf import Shelf, rounded
from tightfit.plan.strips.spans import Strip, Taken, at_once, strip_of, taken, work
from tightfit.plan.strips.stages import Stage, Stages

SLOTS = 2
"""Buffers on the card for what is on its way, up and down each: one is filled, one is used."""
_SHARES = (0.35, 0.6, 0.85)
_RESULT_SHARE = 8
_TRIES = 4
_REMEMBERED = 8
_FEW = 4
_SMALLER = (1.0, 0.93, 0.86, 0.78, 0.68, 0.55, 0.4, 0.25)
"""Of the room, what is laid out for, until the allocator gets by with the room."""
_LESS = 0.87
_GROWTH = (1.0, 1.1, 1.25, 1.5)
_MANY = 200_000
"""Rows times steps."""
_MARGIN = 4
"""Rows beside a span, which an operator makes and nobody takes."""


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
class LaidStage:
    """A stage with its strips.

    Attributes:
        stage: itself.
        strips: in order; empty for one that is not run in strips.
        load, store: bytes of one buffer for copies; 0 where nothing is copied.
    """

    stage: Stage
    strips: tuple[Strip, ...]
    load: int = 0
    store: int = 0


@dataclass(frozen=True)
class Layout:
    """How a network is run in strips.

    Attributes:
        stages: in order.
        on_card: value → how many of its first strips stay on the card; the others lie on the host.
        offsets: (value, strip) → where it lies in the memory for strips, on the card or the host.
        dead: (stage, strip) → kept strips, as (value, strip), that nobody reads after it.
        host_bytes: of the memory for strips there.
        card_arena: of that on the card; `passing` of the buffers for copies beside it.
        card_bytes: the most that is taken of the card, weights and input apart.
        always: of it, at most, what lies there beside all that and is not of a strip.
        result_on_card: the result is put together there.
        up, down: bytes copied to the card, and from it.
        flops: operations, and `again` those among them that are done more than once.
        seconds: predicted.
        counts: value → into how many strips it was cut when it was made.
        last: value → the last stage that reads it.
    """

    stages: tuple[LaidStage, ...]
    on_card: dict[int, int]
    offsets: dict[tuple[int, int], int]
    dead: dict[tuple[int, int], tuple[tuple[int, int], ...]]
    host_bytes: int
    card_arena: int
    passing: int
    card_bytes: int
    always: int
    result_on_card: bool
    up: int
    down: int
    flops: float
    again: float
    seconds: float
    counts: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    @property
    def most_strips(self) -> int:
        """Of the stage that is cut most."""
        return max((len(each.strips) for each in self.stages), default=1)


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
    _strips: dict[tuple[int, int], tuple[Strip, ...]] = field(default_factory=dict)
    _taken: dict[tuple[int, int], Taken] = field(default_factory=dict)
    _fragments: dict[int, float] = field(default_factory=dict)
    _beside: dict[int, int] = field(default_factory=dict)
    _layouts: dict[tuple[int, bool], Layout | None] = field(default_factory=dict)

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

    def _within(self, room: int, given_on_card: bool) -> Layout | None:
        if not self._below_ceiling(given_on_card):
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

    def least(self, *, given_on_card: bool = True) -> int | None:
        """Bytes of the card below which no layout is found; None where the ceiling leaves none.

        Strips of one row each take the least. What the allocator cannot use is not in it.
        """
        if not self._below_ceiling(given_on_card):
            return None
        fixed, beside, passing = self._fixed(), 0, 0
        for stage in self.stages.stages:
            there = fixed[stage.number] + self._at_once(stage)
            if stage.in_strips:
                rows = self._most_strips(stage)
                if not self._spans_below_ceiling(stage, rows):
                    return None
                there += self._peak(stage, rows)
                passing = max(passing, self._passing(stage, rows))
            beside = max(beside, there)
        return beside + passing

    def _shared(self, room: int, part: float, given_on_card: bool) -> Layout | None:
        """With strips that take no more than a part of what is left beside what must stay."""
        fixed = self._fixed()
        result = self.network.extents[self.network.result]
        result_on_card = result.bytes * _RESULT_SHARE <= room
        if self.ceiling is not None and result.elements > self.ceiling:
            result_on_card = False
        counts: dict[int, int] = {}
        beside = passing = always = 0
        for stage in self.stages.stages:
            there = fixed[stage.number] + self._at_once(stage)
            there += result.bytes if result_on_card else 0
            left, always = room - there, max(always, there)
            counts[stage.number] = 0
            if stage.in_strips:
                count = self._count(stage, int(left * part)) or self._count(stage, left)
                if count is None:
                    return None
                counts[stage.number] = count
                there += self._peak(stage, count)
                passing = max(passing, self._passing(stage, count))
            beside = max(beside, there)
        spare = room - beside - passing
        if spare < 0:
            return None
        shelved, layout = float(spare), None
        for _ in range(_TRIES):
            on_card = self._kept(counts, int(shelved), given_on_card, result_on_card)
            tried = self._laid(counts, on_card, beside, always, result_on_card, given_on_card)
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
            on_card = self._kept(counts, 0, given_on_card, result_on_card)
            layout = self._laid(counts, on_card, beside, always, result_on_card, given_on_card)
        return layout if layout.card_bytes <= room else None

    def _passing(self, stage: Stage, count: int) -> int:
        """Bytes of the buffers for copies."""
        told = self._played(stage, count)
        return SLOTS * (rounded(told.load) + rounded(told.store))

    def _fixed(self) -> dict[int, int]:
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

    def _at_once(self, stage: Stage) -> int:
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

    def _count(self, stage: Stage, room: int) -> int | None:
        """The fewest strips that take no more than `room`, fragments included."""
        count = self._fewest(stage, room)
        if count is None or self.allocator not in FRAGMENTS:
            return count
        if stage.number not in self._fragments:
            index = count // 2
            told = taken(self.network, stage, strip_of(self.network, stage, index, count))
            least = least_reserved(told.moves, self.allocator)
            self._fragments[stage.number] = max(1.0, least / max(1, told.peak))
        return self._fewest(stage, room)

    def _fewest(self, stage: Stage, room: int) -> int | None:
        rows = self._most_strips(stage)
        count = 1
        while True:
            size, below = self._working(stage, count), self._spans_below_ceiling(stage, count)
            if size <= room and below:
                return count
            if count >= rows:
                return None
            guess = int(count * min(4.0, max(1.0, size / max(1, room))))
            count = min(rows, max(count + 1, guess))

    def _most_strips(self, stage: Stage) -> int:
        """So many that each has a row of everything that is kept or added up."""
        network = self.network
        shared = list(stage.keeps)
        for at in stage.steps:
            if network.steps[at].kind is Kind.SUMS:
                shared += [use.value for use in network.steps[at].uses]
        return min((network.extents[value].rows for value in shared), default=1)

    def _spans_below_ceiling(self, stage: Stage, count: int) -> bool:
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

    def _below_ceiling(self, given_on_card: bool) -> bool:
        """Whether what is never cut, and the input, are."""
        if self.ceiling is None:
            return True
        whole = [self.network.given] if given_on_card else []
        for stage in self.stages.stages:
            whole += stage.gathers
            if not stage.in_strips:
                whole += [v for at in stage.steps for v in self.network.steps[at].makes]
        return all(self.network.extents[value].elements <= self.ceiling for value in whole)

    @staticmethod
    def _some(count: int) -> list[int]:
        """Strips that tell of all `count`: those at the edges, and inner ones; where there are few,
        every one, since some have a row more than others."""
        inner = range(0, count, max(1, count // _FEW))
        return sorted({*inner, min(1, count - 1), count // 2, count - 1})

    def _peak(self, stage: Stage, count: int) -> int:
        """What the allocator takes for one strip, as far as that is known."""
        return int(self._played(stage, count).peak * self._fragments.get(stage.number, 1.0))

    def _working(self, stage: Stage, count: int) -> int:
        return self._peak(stage, count) + self._passing(stage, count)

    def _played(self, stage: Stage, count: int) -> Taken:
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

    def _all(self, stage: Stage, count: int) -> tuple[Strip, ...]:
        key = (stage.number, count)
        if key not in self._strips:
            self._strips[key] = tuple(
                strip_of(self.network, stage, index, count) for index in range(count)
            )
        return self._strips[key]

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

    def _laid(
        self,
        counts: dict[int, int],
        on_card: dict[int, int],
        beside: int,
        always: int,
        result_on_card: bool,
        given_on_card: bool,
    ) -> Layout:
        """Play it through: when each strip that is kept comes and goes, and where it lies."""
        network, extents = self.network, self.network.extents
        card, host = Shelf(), Shelf()
        offsets: dict[tuple[int, int], int] = {}
        dead: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
        there: dict[tuple[int, int], int] = {}  # what is kept now, and its bytes
        up = down = passing = 0
        flops = again = seconds = 0.0
        laid: list[LaidStage] = []
        counts_of = {value: counts[self.stages.made[value]] for value in on_card
                     if value != network.given}  # fmt: skip
        counts_of[network.given] = 1
        if not given_on_card:
            offsets[network.given, 0] = host.take(extents[network.given].bytes)
            there[network.given, 0] = extents[network.given].bytes

        def drop(gone: tuple[tuple[int, int], ...]) -> None:
            for key in gone:
                shelf = card if key[1] < on_card[key[0]] else host
                shelf.give(offsets[key], there.pop(key))

        for stage in self.stages.stages:
            number = stage.number
            if not stage.in_strips:
                seconds += self._seconds(stage, (), 0, 0)
                laid.append(LaidStage(stage, ()))
                dead[number, 0] = self._gone(there, number, 0, None, counts_of)
                drop(dead[number, 0])
                continue
            strips = self._all(stage, counts[number])
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
            last=self.stages.last,
        )

    def _from_host(
        self, value: int, strip: Strip, on_card: dict[int, int], counts: dict[int, int]
    ) -> int:
        """Bytes of what `strip` loads of `value` that lie on the host."""
        span = strip.spans.get(value)
        if span is None:
            return 0
        extent, count = self.network.extents[value], counts[value]
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
            if self.stages.last.get(value, -1) > number or value == self.network.result:
                continue
            if self.stages.last[value] < number or last_strip:
                gone.append((value, place))
                continue
            assert strips is not None
            end = share(self.network.extents[value].rows, place, counts[value])[1]
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
            work(self.network, stage, strips)
            if strips
            else float(sum(self.network.steps[at].flops for at in stage.steps))
        )
        launches = len(stage.steps) * max(1, len(strips))
        compute = max(flops / self.rates.flops, launches * self.rates.launch)
        return max(compute, up / self.rates.link, down / self.rates.link)
