"""Which steps run together."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from tests.plan.strips.networks import networks
from tightfit.plan.strips.network import Extent, Kind, Network, Step, Use
from tightfit.plan.strips.reach import SAME, Reach
from tightfit.plan.strips.stages import CONSTANTS, _collect, _earliest, staged

WIDE = st.sampled_from([0.5, 4.0, 1e9])


@given(networks(), WIDE)
def test_every_step_is_in_one_stage_and_what_it_reads_is_there(
    network: Network, wide: float
) -> None:
    """Made before it in its own stage or in an earlier one; what it reads all at once, earlier."""
    told = staged(network, wide=wide)
    number_of = {at: stage.number for stage in told.stages for at in stage.steps}
    assert sorted(number_of) == list(range(len(network.steps)))
    assert sum(len(stage.steps) for stage in told.stages) == len(network.steps)
    assert [stage.number for stage in told.stages] == sorted({s.number for s in told.stages})
    for stage in told.stages:
        assert list(stage.steps) == sorted(stage.steps)
        for at in stage.steps:
            step = network.steps[at]
            assert (step.kind is Kind.CONSTANT) == (stage.number == CONSTANTS)
            if step.kind in (Kind.LOCAL, Kind.SUMS):
                assert stage.in_strips
            if step.kind is Kind.WHOLE:
                assert not stage.in_strips
            for use in step.uses:
                made = told.made[use.value]
                if use.reach is None and stage.in_strips and made != CONSTANTS:
                    assert made < stage.number
                else:
                    assert made <= stage.number


@given(networks(), WIDE)
def test_what_crosses_a_wall_is_kept_and_loaded_or_gathered(network: Network, wide: float) -> None:
    """And nothing else is kept, but the result."""
    told = staged(network, wide=wide)
    kept = {value: stage.number for stage in told.stages for value in stage.keeps}
    crossing = {network.result}
    for stage in told.stages:
        for at in stage.steps:
            for use in network.steps[at].uses:
                made = told.made[use.value]
                if made == CONSTANTS or made % 2:
                    continue
                whole = use.reach is None or not stage.in_strips
                if made < stage.number and use.value != network.given:
                    crossing.add(use.value)
                    assert kept[use.value] == made
                if made < stage.number or use.value == network.given:
                    assert use.value in (stage.gathers if whole else stage.loads)
                assert told.last[use.value] >= stage.number
    assert set(kept) == crossing


@given(networks(), WIDE)
def test_running_later_never_keeps_more(network: Network, wide: float) -> None:
    """Bytes of what is made in strips, times the stages over which they are kept."""
    numbers, made, _ = _earliest(network, wide)
    early = _collect(network, numbers, dict(made))
    late = staged(network, wide=wide)
    values = [value for value, number in early.made.items() if number % 2 == 0]

    def kept(told: object) -> int:
        return sum(
            network.extents[value].bytes
            * max(0, told.last.get(value, told.made[value]) - told.made[value])  # type: ignore[attr-defined]
            for value in values
        )

    assert kept(late) <= kept(early)
    assert len(late.stages) <= len(early.stages)


def _chain(*uses: Iterable[Use] | Kind) -> Network:
    """A row of steps, each of which reads the one before it."""
    steps, extents = [], [Extent(6400, 64, 0)]
    for at, (kind, reach) in enumerate(uses):  # type: ignore[misc]
        steps.append(Step(kind, (Use(at, reach),), (at + 1,)))
        rows = extents[-1].rows
        if reach is not None:
            rows = rows * reach.down // reach.up
        extents.append(Extent(100 * rows, rows, at + 1))
    return Network(tuple(steps), tuple(extents), 0, len(steps))


def test_a_local_chain_is_one_stage() -> None:
    """Without changes of resolution no halo is a wall."""
    network = _chain(*[(Kind.LOCAL, Reach(before=1, after=1))] * 20)  # type: ignore[arg-type]
    (stage,) = staged(network).stages
    assert stage.keeps == (network.result,)
    assert stage.loads == (network.given,)


def test_halo_that_came_together_is_cut_off_at_the_smaller_side() -> None:
    """Where what follows is larger, what is smaller is kept."""
    conv = (Kind.LOCAL, Reach(before=1, after=1))
    up = (Kind.LOCAL, Reach(down=2))
    network = _chain(conv, conv, conv, conv, up, conv, conv, conv)  # type: ignore[arg-type]
    first, second = staged(network).stages
    assert first.keeps == second.loads
    (kept,) = first.keeps
    assert network.extents[kept].rows == 64
    assert len(staged(network, wide=100).stages) == 1


def test_what_needs_everything_runs_between_two_stages() -> None:
    """Its input is kept, and what it makes is there for the strips behind it."""
    conv = (Kind.LOCAL, Reach(before=1, after=1))
    network = _chain(conv, (Kind.WHOLE, None), (Kind.LOCAL, SAME))  # type: ignore[arg-type]
    numbers = [stage.number for stage in staged(network).stages]
    assert numbers == [0, 1, 2]
