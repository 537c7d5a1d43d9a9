"""The residency map of hand-made records."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.report.page.records import MIB, event, streamed_job
from tightfit.report.page.residency import Run, residency


def placed(t: float, block: str, state: str, network: str = "a") -> dict[str, Any]:
    """One block of 10 MiB."""
    return event(t, "placed", block=block, network=network, state=state, bytes=10 * MIB)


def step(t: float, done: int) -> dict[str, Any]:
    """A step of denoising."""
    return event(t, "step", done=done, total=3)


def test_a_block_stays_in_its_state_until_something_is_told() -> None:
    """Load, then a step each; an eviction counts from its own step on."""
    events = [
        placed(0.0, "b0", "resident"),
        placed(0.1, "b1", "packed"),
        event(0.5, "streamed_step", network="a", blocks=[]),
        step(1.0, 1),
        event(1.5, "evicted", network="a", block="b0", bytes=10 * MIB),
        step(2.0, 2),
        step(3.0, 3),
    ]
    found = residency(events)
    assert found is not None
    assert found.columns == ("load", "step 1", "step 2", "step 3")
    first, second = found.rows
    assert first.runs == (Run(0, 2, "resident"), Run(2, 4, "evicted"))
    assert second.runs == (Run(0, 4, "packed"),)
    assert found.states == ("resident", "packed", "evicted")


def test_a_network_that_rests_is_away_until_it_is_called_again() -> None:
    """And then it is where it was; the other network is not concerned."""
    events = [
        placed(0.0, "b", "resident", "one"),
        placed(0.0, "b", "resident", "two"),
        event(0.9, "streamed_step", network="one", blocks=[]),
        event(1.0, "rests", network="one", bytes=10 * MIB),
        event(2.0, "streamed_step", network="two", blocks=[]),
        event(3.0, "streamed_step", network="one", blocks=[]),
    ]
    found = residency(events)
    assert found is not None
    one, two = found.rows
    assert (one.name, two.name) == ("one: b", "two: b")
    assert [run.state for run in one.runs] == ["resident", "evicted", "resident"]
    assert [run.state for run in two.runs] == ["resident"]


def test_a_block_that_streams_is_found_without_a_placement() -> None:
    """A trace may have lost its beginning."""
    use = {"name": "b7", "moved_bytes": 5}
    found = residency([event(0.0, "streamed_step", network="a", blocks=[use])])
    assert found is not None
    assert found.rows[0].name == "b7"
    assert found.rows[0].runs[-1].state == "streamed"


def test_without_blocks_there_is_no_map() -> None:
    """Steps alone make none."""
    assert residency([step(1.0, 1)]) is None


def test_every_row_covers_every_column_however_many_steps_there_are() -> None:
    """Thinned, not cut: the last column is the end."""
    for steps in (1, 12, 500, 3_000):
        found = residency(streamed_job(blocks=6, steps=steps))
        assert found is not None
        assert len(found.columns) <= 122
        assert found.columns[-1] == "the end"
        for row in found.rows:
            edges = [(run.start, run.stop) for run in row.runs]
            assert edges[0][0] == 0
            assert edges[-1][1] == len(found.columns)
            assert all(one[1] == two[0] for one, two in pairwise(edges))


def test_a_step_that_is_told_late_counts_when_it_was() -> None:
    """At `start`, and its own placements come before it is over."""
    use = {"name": "b1", "moved_bytes": 5}
    late = {"network": "a", "blocks": [use]}
    events = [
        placed(0.2, "b0", "resident"),
        placed(0.3, "b1", "streamed"),
        event(1.5, "evicted", network="a", block="b0", bytes=5),
        event(9.0, "streamed_step", start=0.1, seconds=0.5, **late),
        event(9.0, "streamed_step", start=2.0, seconds=0.5, **late),
    ]
    found = residency(events)
    assert found is not None
    assert found.columns == ("load", "step 1", "step 2")
    assert found.rows[0].runs == (Run(0, 2, "resident"), Run(2, 3, "evicted"))


def test_blocks_stand_in_the_order_of_their_numbers() -> None:
    """Whichever were placed first: what is spread among what can be seen."""
    names = ["inp", "blocks.10", "blocks.2", "out", "blocks.9"]
    found = residency([placed(0.0, name, "resident") for name in names])
    assert found is not None
    assert [row.name for row in found.rows] == ["inp", "blocks.2", "blocks.9", "blocks.10", "out"]


def test_many_blocks_that_are_alike_share_a_line() -> None:
    """Nothing is lost: bytes and counts add up."""
    events = [placed(0.0, f"b{n}", "resident" if n < 150 else "streamed") for n in range(200)]
    found = residency(events)
    assert found is not None
    assert [row.count for row in found.rows] == [150, 50]
    assert sum(row.bytes or 0 for row in found.rows) == 200 * 10 * MIB
