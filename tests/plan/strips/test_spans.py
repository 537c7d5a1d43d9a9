"""Which rows one strip computes, and what it takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.strips.networks import networks
from tightfit.plan.strips.laying import Laying
from tightfit.plan.strips.network import Extent, Kind, Network, Step, Use
from tightfit.plan.strips.playing import Rates
from tightfit.plan.strips.reach import SAME
from tightfit.plan.strips.shelf import rounded
from tightfit.plan.strips.spans import Strip, at_once, strip_of, taken, work
from tightfit.plan.strips.stages import Stage, staged


def _stages(network: Network) -> list[Stage]:
    return [stage for stage in staged(network).stages if stage.in_strips]


@given(networks(), st.integers(1, 9))
def test_strips_keep_all_rows_once(network: Network, count: int) -> None:
    """Of what is kept, and of what is added up."""
    for stage in _stages(network):
        strips = [strip_of(network, stage, index, count) for index in range(count)]
        summed = {
            use.value
            for at in stage.steps
            if network.steps[at].kind is Kind.SUMS
            for use in network.steps[at].uses
        }
        for value in {*stage.keeps, *summed}:
            own = [row for strip in strips for row in range(*strip.own[value])]
            assert own == list(range(network.extents[value].rows))
            for strip in strips:
                (begin, end), (low, high) = strip.own[value], strip.spans[value]
                assert low <= begin <= end <= high


@given(networks(), st.integers(1, 9))
def test_a_strip_has_the_rows_that_its_steps_need(network: Network, count: int) -> None:
    """What it makes of each value is what is needed for all that is made of it."""
    for stage in _stages(network):
        for index in range(count):
            strip = strip_of(network, stage, index, count)
            for at in stage.steps:
                step = network.steps[at]
                made = strip.spans.get(step.makes[0])
                if step.kind is Kind.SUMS or made is None:
                    continue
                for use in step.uses:
                    if use.reach is None:
                        continue
                    rows = network.extents[use.value].rows
                    low, high = use.reach.needs(*made, rows)
                    begin, end = strip.spans[use.value]
                    assert begin <= low < high <= end <= rows


def _brute(network: Network, stage: Stage, strip: Strip) -> int:
    """The most at once, by looking at each step which memories live during it."""
    extents, steps = network.extents, [network.steps[at] for at in stage.steps]
    born: dict[int, tuple[int, int]] = {}  # memory → (step, bytes)
    dies: dict[int, int] = {}
    loaded = set(stage.loads)
    for at, step in enumerate(steps):
        for use in step.uses:
            dies[extents[use.value].memory] = at
        reads = [use.value for use in step.uses if use.value in loaded]
        for value in (*reads, *step.makes):
            span = strip.spans.get(value)
            if span is not None:
                edge = max(1, step.spare[1])
                more = step.spare[span[0] < edge or extents[value].rows - span[1] < edge]
                whole = span[1] - span[0] == extents[value].rows or value not in step.makes
                size = rounded(extents[value].of(span[1] - span[0] + (0 if whole else more)))
                born.setdefault(extents[value].memory, (at, size))
                dies.setdefault(extents[value].memory, at)
    for value in stage.keeps:
        dies[extents[value].memory] = len(steps)
    peak = 0
    for at, step in enumerate(steps):
        now = sum(size for memory, (birth, size) in born.items() if birth <= at <= dies[memory])
        touched = [use.value for use in step.uses] + list(step.makes)
        spans = [(v, strip.spans[v]) for v in touched if v in strip.spans]
        beside = step.scratch * sum(extents[v].of(end - begin) for v, (begin, end) in spans)
        peak = max(peak, now + int(beside))
    return peak


@given(networks(), st.integers(1, 9))
def test_the_peak_is_that_of_the_step_with_the_most_alive(network: Network, count: int) -> None:
    """As a look at each step tells; and the moves add up to it."""
    for stage in _stages(network):
        for index in {0, count // 2, count - 1}:
            strip = strip_of(network, stage, index, count)
            told = taken(network, stage, strip)
            assert told.peak == _brute(network, stage, strip)
            live: dict[int, int] = {}
            most = 0
            for key, size in told.moves:
                if size:
                    assert key not in live
                    live[key] = size
                else:
                    live.pop(key, None)
                most = max(most, sum(live.values()))
            assert not live
            assert most == told.peak


@given(networks())
def test_one_strip_does_the_work_once(network: Network) -> None:
    """And more strips never do less."""
    for stage in _stages(network):
        once = work(network, stage, [strip_of(network, stage, 0, 1)])
        flops = sum(network.steps[at].flops for at in stage.steps)
        assert once <= flops * (1 + 1e-9)
        for count in (2, 5):
            strips = [strip_of(network, stage, index, count) for index in range(count)]
            assert work(network, stage, strips) >= once * (1 - 1e-9) - 1e-6


def _attentions(frames: int) -> Network:
    """Of one input of eight rows each frame makes its own, and looks at all of that at once."""
    extents, steps = [Extent(8000, 8, 0)], []

    def made(size: int, memory: int | None = None) -> int:
        extents.append(Extent(size, 8, len(extents) if memory is None else memory))
        return len(extents) - 1

    results = []
    for _ in range(frames):
        mixed = made(24000)
        steps.append(Step(Kind.LOCAL, (Use(0, SAME),), (mixed,)))
        flat = made(24000, mixed)
        steps.append(Step(Kind.WHOLE, (Use(mixed),), (flat,)))
        seen = made(8000)
        steps.append(Step(Kind.WHOLE, (Use(flat),), (seen,), 0.5))
        again = made(8000, seen)
        steps.append(Step(Kind.WHOLE, (Use(seen),), (again,)))
        results.append(again)
    total = made(8000)
    steps.append(Step(Kind.LOCAL, tuple(Use(value, SAME) for value in results), (total,)))
    return Network(tuple(steps), tuple(extents), 0, total)


@pytest.mark.parametrize("frames", [1, 2, 7])
def test_what_is_read_at_once_is_there_for_one_reader_at_a_time(frames: int) -> None:
    """Through a buffer as large; what they make stays, under whatever name it is read later."""
    network = _attentions(frames)
    stages = staged(network)
    (stage,) = (each for each in stages.stages if each.number == 1)
    before = (frames - 1) * rounded(8000)
    there = rounded(24000)
    peak = max(there + rounded(24000), there + rounded(8000) + (24000 + 8000) // 2)
    assert at_once(network, stage, stages.last) == before + peak
    room = Laying(network, stages, Rates(1.0, 1.0)).least()
    assert room is not None
    assert room >= frames * rounded(8000)
