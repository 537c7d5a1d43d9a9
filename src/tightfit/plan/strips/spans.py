"""Which rows of everything one strip of a stage computes, and what that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tightfit.plan.strips.network import Kind, Network, Step
from tightfit.plan.strips.reach import share
from tightfit.plan.strips.shelf import rounded
from tightfit.plan.strips.stages import Stage

Span = tuple[int, int]
_SCRATCH = -(2**62)
"""Like no memory of a value."""


@dataclass(frozen=True)
class Strip:
    """One strip of a stage.

    Attributes:
        spans: value → the rows of it that are loaded or made.
        own: value → of those it keeps, the rows that are this strip's to keep; of those that are
            added up, its rows.
    """

    spans: dict[int, Span]
    own: dict[int, Span]


def strip_of(network: Network, stage: Stage, index: int, count: int) -> Strip:
    """Strip `index` of `count`: each keeps its share, and computes what that needs."""
    extents = network.extents
    spans: dict[int, Span] = {}
    own: dict[int, Span] = {}
    for value in stage.keeps:
        spans[value] = own[value] = share(extents[value].rows, index, count)
    for at in reversed(stage.steps):
        step = network.steps[at]
        if step.kind is Kind.SUMS:
            for use in step.uses:
                mine = own.setdefault(use.value, share(extents[use.value].rows, index, count))
                spans[use.value] = _hull(spans.get(use.value), mine)
            continue
        made = _made(step, spans)
        if made is None:
            continue
        for value in step.makes:
            spans[value] = made
        for use in step.uses:
            if use.reach is not None:
                needed = use.reach.needs(*made, extents[use.value].rows)
                spans[use.value] = _hull(spans.get(use.value), needed)
    return Strip(spans, own)


def _made(step: Step, spans: dict[int, Span]) -> Span | None:
    """The rows of what `step` makes that somebody wants."""
    made: Span | None = None
    for value in step.makes:
        if value in spans:
            made = _hull(made, spans[value])
    return made


def _hull(one: Span | None, two: Span) -> Span:
    return two if one is None else (min(one[0], two[0]), max(one[1], two[1]))


@dataclass(frozen=True)
class Taken:
    """What one strip takes of the card.

    Attributes:
        peak: the most bytes at once, without what is kept and without buffers for copies.
        load: bytes of the largest value that it loads.
        store: bytes of the largest that it keeps.
        moves: every tensor that comes, as (key, bytes), and goes, as (key, 0).
    """

    peak: int
    load: int
    store: int
    moves: tuple[tuple[int, int], ...]


def taken(network: Network, stage: Stage, strip: Strip) -> Taken:
    """Play one strip through: what is made lives until its last reader has run."""
    extents = network.extents
    last: dict[int, int] = {}
    for at in stage.steps:
        for use in network.steps[at].uses:
            last[extents[use.value].memory] = at
    kept = {extents[value].memory for value in stage.keeps}
    loaded = set(stage.loads)
    live: dict[int, int] = {}
    moves: list[tuple[int, int]] = []
    now = peak = beside = 0

    def come(value: int, spare: tuple[int, int] = (0, 0)) -> None:
        nonlocal now
        span, memory = strip.spans.get(value), extents[value].memory
        if span is not None and memory not in live:
            live[memory] = rounded(extents[value].of(_height(span, extents[value].rows, spare)))
            now += live[memory]
            moves.append((memory, live[memory]))

    for at in stage.steps:
        step = network.steps[at]
        for use in step.uses:
            if use.value in loaded:
                come(use.value)
        for value in step.makes:
            come(value, step.spare)
        beside = _beside(network, step, strip)
        if beside:
            moves.extend(((_SCRATCH, beside), (_SCRATCH, 0)))
        peak = max(peak, now + beside)
        touched = {extents[use.value].memory for use in step.uses}
        touched.update(extents[value].memory for value in step.makes)
        for memory in touched:
            if last.get(memory, at) <= at and memory not in kept:
                now -= live.get(memory, 0)
                if live.pop(memory, 0):
                    moves.append((memory, 0))
    moves.extend((memory, 0) for memory in live)
    return Taken(
        peak,
        max((_size(network, value, strip.spans.get(value)) for value in stage.loads), default=0),
        max((_size(network, value, strip.own.get(value)) for value in stage.keeps), default=0),
        tuple(moves),
    )


def at_once(network: Network, stage: Stage, last: Mapping[int, int]) -> int:
    """The most bytes of the card that a stage without strips takes.

    What it reads of strips is put together just before its first reader, through a buffer that may
    be as large. `last` tells the last stage that reads a value.
    """
    extents = network.extents
    uses: dict[int, int] = {}
    for at in stage.steps:
        step = network.steps[at]
        for value in (*(use.value for use in step.uses), *step.makes):
            uses[extents[value].memory] = at
    gathers = set(stage.gathers)
    live: dict[int, int] = {}
    stay: set[int] = set()
    now = peak = 0
    for at in stage.steps:
        step = network.steps[at]
        touched = [use.value for use in step.uses]
        for value in (*touched, *step.makes):
            memory, size = extents[value].memory, rounded(extents[value].bytes)
            if memory in live or (value in touched and value not in gathers):
                continue
            live[memory] = size
            now += size
            peak = max(peak, now + (size if value in gathers else 0))
        sizes = (extents[value].bytes for value in (*touched, *step.makes))
        peak = max(peak, now + int(step.scratch * sum(sizes)))
        stay.update(extents[value].memory for value in step.makes
                    if last.get(value, stage.number) > stage.number)  # fmt: skip
        for value in (*touched, *step.makes):
            memory = extents[value].memory
            if uses[memory] <= at and memory not in stay:
                now -= live.pop(memory, 0)
    return peak


def _height(span: Span, rows: int, spare: tuple[int, int]) -> int:
    """Rows of memory behind those of `span`."""
    height = span[1] - span[0]
    if height == rows:
        return height
    near = max(1, spare[1])
    return height + spare[span[0] < near or span[1] > rows - near]


def _size(network: Network, value: int, span: Span | None) -> int:
    return 0 if span is None else network.extents[value].of(span[1] - span[0])


def _beside(network: Network, step: Step, strip: Strip) -> int:
    if not step.scratch:
        return 0
    sizes = [
        network.extents[value].of(span[1] - span[0])
        for value in (*(use.value for use in step.uses), *step.makes)
        if (span := strip.spans.get(value)) is not None
    ]
    return int(step.scratch * sum(sizes))


def work(network: Network, stage: Stage, strips: Sequence[Strip]) -> float:
    """Floating-point operations of all strips, rows that are computed twice included."""
    total = 0.0
    for at in stage.steps:
        step = network.steps[at]
        if not step.flops or not step.makes:
            continue
        value = step.makes[0]
        rows = network.extents[value].rows
        if not rows:
            total += step.flops
            continue
        for strip in strips:
            span = strip.spans.get(value)
            if span is not None:
                total += step.flops * (span[1] - span[0]) / rows
    return total
