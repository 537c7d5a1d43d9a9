"""Networks of any shape, as numbers."""

from __future__ import annotations

from hypothesis import strategies as st

from tightfit.plan.strips.network import Extent, Kind, Network, Step, Use
from tightfit.plan.strips.reach import SAME, Reach

_KINDS = ("same", "conv", "down", "up", "norm", "whole", "view", "add", "attend")


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Convolutions, changes of resolution, norms, skips, views and gathers in any order."""
    rows = draw(st.integers(3, 24))
    extents = [Extent(rows * draw(st.integers(1, 3000)), rows, memory=0)]
    steps: list[Step] = []

    def made(rows: int, size: int | None = None, memory: int | None = None) -> int:
        number = len(extents)
        size = rows * draw(st.integers(1, 3000)) if size is None else size
        extents.append(Extent(size, rows, number if memory is None else memory))
        return number

    def step(kind: Kind, uses: list[Use], value: int, scratch: float = 0.0) -> None:
        flops = draw(st.integers(0, 10**9))
        spare = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        steps.append(Step(kind, tuple(uses), (value,), scratch, flops, spare))

    constant = made(0, 300)
    steps.append(Step(Kind.CONSTANT, (), (constant,)))
    values = [0]
    for _ in range(draw(st.integers(1, 12))):
        source = draw(st.sampled_from(values[-3:]))
        here = extents[source].rows
        kind = draw(st.sampled_from(_KINDS))
        if kind == "down" and here < 4:
            kind = "conv"
        if kind == "norm":
            sums = made(0, 64)
            step(Kind.SUMS, [Use(source, SAME)], sums)
            value = made(here)
            step(Kind.LOCAL, [Use(source, SAME), Use(sums), Use(constant)], value)
        elif kind == "whole":
            value = made(here)
            step(Kind.WHOLE, [Use(source)], value)
        elif kind == "attend":
            other = draw(st.sampled_from(values))
            value = made(here)
            step(Kind.LOCAL, [Use(source, SAME), Use(other)], value, 0.5)
        elif kind == "view":
            value = made(here, extents[source].bytes, extents[source].memory)
            step(Kind.LOCAL, [Use(source, SAME)], value)
        elif kind == "down":
            value = made((here - 1) // 2 + 1)
            step(Kind.LOCAL, [Use(source, Reach(up=2, before=1, after=0))], value)
        elif kind == "up":
            value = made(2 * here)
            step(Kind.LOCAL, [Use(source, Reach(down=2))], value)
        elif kind == "add":
            others = [other for other in values if extents[other].rows == here]
            value = made(here)
            both = [Use(source, SAME), Use(draw(st.sampled_from(others)), SAME)]
            step(Kind.LOCAL, both, value)
        else:
            edge = draw(st.integers(1, 3)) if kind == "conv" else 0
            value = made(here)
            scratch = draw(st.sampled_from([0.0, 1.0]))
            step(Kind.LOCAL, [Use(source, Reach(before=edge, after=edge))], value, scratch)
        values.append(value)
    result = made(extents[values[-1]].rows)
    step(Kind.LOCAL, [Use(values[-1], SAME)], result)
    return Network(tuple(steps), tuple(extents), 0, result)
