"""Which steps can run together, strip by strip.

A step that needs all rows of something (the statistics of a group norm, the keys of attention)
parts those before it from those after it. Between two such walls, steps run for one strip at a
time; what crosses a wall is kept. Further walls are put where rows would be computed again and
again: at the smaller side of a change of resolution, once enough halo has come together.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tightfit.plan.strips.network import Kind, Network, Step

WIDE_HALO = 4
"""Rows of halo from which on a change of resolution is a wall."""
CONSTANTS = -1


@dataclass(frozen=True)
class Stage:
    """Steps between two walls.

    Attributes:
        number: even where they run strip by strip, odd where each runs on all rows at once.
        steps: their numbers, in order.
        keeps: values made here that are read later, or are the result.
        loads: values made before that some strip reads, in the order of their first use.
        gathers: values that are read here all at once.
    """

    number: int
    steps: tuple[int, ...]
    keeps: tuple[int, ...]
    loads: tuple[int, ...]
    gathers: tuple[int, ...]

    @property
    def in_strips(self) -> bool:
        """Whether it runs strip by strip."""
        return self.number % 2 == 0


@dataclass(frozen=True)
class Stages:
    """All of a network.

    Attributes:
        stages: in order; constants come first, as number `CONSTANTS`.
        made: value → number of the stage that makes it (the input: 0).
        last: value → number of the last stage that reads it.
    """

    stages: tuple[Stage, ...]
    made: dict[int, int]
    last: dict[int, int]


def staged(network: Network, *, wide: float = WIDE_HALO) -> Stages:
    """The stages of `network`, as few as can be, each step as late as it costs nothing."""
    numbers, made, walled = _earliest(network, wide)
    _sink(network, numbers, made, walled)
    return _collect(network, numbers, made)


def _earliest(network: Network, wide: float) -> tuple[list[int], dict[int, int], set[int]]:
    """The stage of each step and value; and the values at whose halo was cut."""
    numbers: list[int] = []
    made = {network.given: 0}
    halos: dict[int, float] = {}
    walls: set[int] = set()
    walled: set[int] = set()
    for step in network.steps:
        if step.kind is Kind.CONSTANT:
            numbers.append(CONSTANTS)
            made.update(dict.fromkeys(step.makes, CONSTANTS))
            continue
        number, halo = _placed(step, made, halos, walls, walled, wide)
        numbers.append(number)
        if step.kind is Kind.SUMS:
            made.update(dict.fromkeys(step.makes, number | 1))
            continue
        made.update(dict.fromkeys(step.makes, number))
        halos.update(dict.fromkeys(step.makes, halo))
        reach = next((use.reach for use in step.uses if use.reach and use.reach.resizes), None)
        if reach is not None and reach.up > reach.down and halo * reach.up / reach.down >= wide:
            walls.update(step.makes)
    return numbers, made, walled


def _placed(
    step: Step,
    made: dict[int, int],
    halos: dict[int, float],
    walls: set[int],
    walled: set[int],
    wide: float,
) -> tuple[int, float]:
    """The first stage in which `step` can run, and the halo of what it makes.

    What it reads from behind a wall of its own joins `walled`.
    """
    if step.kind is Kind.WHOLE:
        return max((_odd(made[use.value]) for use in step.uses), default=1), 0.0
    number = 0
    walled.update(use.value for use in step.uses if use.value in walls)
    for use in step.uses:
        reach = use.reach
        if reach is not None and reach.down > reach.up and halos.get(use.value, 0.0) >= wide:
            walled.add(use.value)
    for use in step.uses:
        at = made[use.value]
        if at % 2:  # of constants too: -1 % 2 is 1
            number = max(number, at + 1)
        elif use.reach is None or use.value in walled:
            number = max(number, at + 2)
        else:
            number = max(number, at)
    halo = 0.0
    for use in step.uses:
        if use.reach is not None:
            inside = made[use.value] == number and use.value not in walled
            before = halos.get(use.value, 0.0) if inside else 0.0
            halo = max(halo, use.reach.widened(before))
    return number, halo


def _odd(number: int) -> int:
    return number if number % 2 and number > 0 else max(number, 0) + 1


def _sink(network: Network, numbers: list[int], made: dict[int, int], walled: set[int]) -> None:
    """Let each step run as late as that keeps no more, and adds nothing to a halo that was cut."""
    readers: dict[int, list[int]] = defaultdict(list)
    for at, step in enumerate(network.steps):
        for use in step.uses:
            readers[use.value].append(at)
    extents = network.extents
    for at in reversed(range(len(network.steps))):
        step = network.steps[at]
        if step.kind is not Kind.LOCAL or network.result in step.makes:
            continue
        latest = _latest(network, numbers, readers, step)
        if latest is None or latest <= numbers[at]:
            continue
        inputs = [use.value for use in step.uses if made[use.value] % 2 == 0]
        free = latest
        for value in inputs:
            others = (numbers[other] for other in readers[value] if other != at)
            free = min(free, max(others, default=0))
        extra = sum(
            extents[value].bytes
            for value in set(inputs)
            if max((numbers[o] for o in readers[value] if o != at), default=0) < latest
            and made[value] < latest
        )
        gain = sum(extents[value].bytes for value in step.makes)
        cut = any(value in walled for value in step.makes)
        stays = cut and any(use.reach and use.reach.widened(0) > 0 for use in step.uses)
        target = free - free % 2 if stays or extra > gain else latest
        if target > numbers[at]:
            numbers[at] = target
            made.update(dict.fromkeys(step.makes, target))
            walled.update(inputs if cut else ())


def _latest(
    network: Network, numbers: list[int], readers: dict[int, list[int]], step: Step
) -> int | None:
    """The stage of its first reader; None where one reads all of it at once."""
    stages = []
    for value in step.makes:
        for reader in readers[value]:
            other = network.steps[reader]
            whole = any(use.value == value and use.reach is None for use in other.uses)
            if other.kind is not Kind.LOCAL or whole:
                return None
            stages.append(numbers[reader])
    return min(stages, default=None)


def _collect(network: Network, numbers: list[int], made: dict[int, int]) -> Stages:
    last: dict[int, int] = {network.result: max(numbers)}
    for number, step in zip(numbers, network.steps, strict=True):
        for use in step.uses:
            last[use.value] = max(last.get(use.value, number), number)
    grouped: dict[int, list[int]] = defaultdict(list)
    for at, number in enumerate(numbers):
        grouped[number].append(at)
    stages = []
    for number in sorted(grouped):
        keeps: list[int] = []
        loads: dict[int, None] = {}
        gathers: dict[int, None] = {}
        inside: set[int] = set()
        for at in grouped[number]:
            step = network.steps[at]
            for use in step.uses:
                rows = network.extents[use.value].rows
                foreign = use.value not in inside and made[use.value] % 2 == 0
                if foreign and rows and use.reach is not None and number % 2 == 0:
                    loads[use.value] = None
                elif foreign and made[use.value] != CONSTANTS:
                    gathers[use.value] = None
            inside.update(step.makes)
            if step.kind is Kind.LOCAL:
                keeps += [
                    value
                    for value in step.makes
                    if last.get(value, -1) > number or value == network.result
                ]
        stages.append(
            Stage(number, tuple(grouped[number]), tuple(keeps), tuple(loads), tuple(gathers))
        )
    return Stages(tuple(stages), made, last)
