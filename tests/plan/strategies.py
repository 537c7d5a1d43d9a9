"""Jobs and cards that hypothesis makes up for the planner."""

from __future__ import annotations

from hypothesis import strategies as st

from tightfit.plan.demand import Demand, Unit, Way
from tightfit.plan.figure import Figure, Rate
from tightfit.plan.supply import Host, Supply
from tightfit.units import MIB

SMALL = st.integers(0, 40).map(lambda size: size * MIB)


@st.composite
def units(draw: st.DrawFn, most: int = 12) -> tuple[Unit, ...]:
    """A few blocks: some alike, some converted, some with parts, some that cannot be streamed."""
    made = []
    for at in range(draw(st.integers(0, most))):
        size = draw(st.sampled_from([0, 1, 6, 6, 6, 10, 24])) * MIB
        parts: tuple[Unit, ...] = ()
        largest = None
        if size and draw(st.booleans()):
            first = draw(st.integers(1, size // MIB)) * MIB
            if draw(st.booleans()):
                sizes = [each for each in (first, size - first) if each]
                parts = tuple(Unit(f"{at}.{n}", each) for n, each in enumerate(sizes))
            else:
                largest = first
        made.append(
            Unit(
                str(at),
                size,
                converted=draw(st.sampled_from([0, 0, 0, 4])) * size,
                largest=largest,
                parts=parts,
                stays=draw(st.sampled_from([None, None, None, None, "tied"])),
            )
        )
    return tuple(made)


@st.composite
def demands(draw: st.DrawFn, name: str = "denoise") -> Demand:
    """A stage with one way, or a ladder of three."""
    first = draw(SMALL)
    ways = (
        Way("whole", Figure(first), slack=Figure(draw(SMALL) // 4)),
        Way("strips", Figure(first // 2), host=Figure(first)),
        Way("tiles", Figure(first // 4), exact=False),
    )
    return Demand(
        name,
        draw(units()),
        activations=Figure(first),
        workspace=Figure(draw(SMALL) // 8),
        ways=draw(st.sampled_from([(), ways])),
        inputs=draw(st.integers(0, 2)) * MIB,
        scratch=Figure(draw(st.sampled_from([0, MIB]))),
        calls=draw(st.integers(1, 30)),
        seconds=draw(st.sampled_from([None, 0.001, 0.01, 1.0])),
        mapped=draw(st.booleans()),
    )


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Demand, ...]:
    """One to three stages; the last may share its weights with the first."""
    count = draw(st.integers(1, 3))
    return tuple(draw(demands(name=f"stage {at}")) for at in range(count))


@st.composite
def supplies(draw: st.DrawFn) -> Supply:
    """A card of up to 160 MiB, of which others may hold a part."""
    total = draw(st.integers(1, 160)) * MIB
    host = Host(
        total=256 * MIB,
        available=draw(st.integers(0, 256)) * MIB,
        cgroup_limit=draw(st.sampled_from([None, 100 * MIB])),
        pin_limit=draw(st.sampled_from([None, 0, 30 * MIB])),
        rounding=draw(st.sampled_from(["exact", "power_of_two"])),
    )
    return Supply(
        "virtual",
        total,
        budget=draw(st.integers(1, total // MIB)) * MIB,
        held=draw(st.sampled_from([0, 0, 3 * MIB])),
        held_by_others=Figure(draw(st.sampled_from([0, 0, 8 * MIB])), "measured"),
        context=Figure(draw(st.sampled_from([0, 2 * MIB])), "table"),
        reserve=draw(st.sampled_from([0, 0, 4 * MIB])),
        link=Rate(draw(st.sampled_from([None, 1e9, 5e10]))),
        host=draw(st.sampled_from([None, host])),
    )
