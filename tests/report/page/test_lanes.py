"""Copies beside compute, from hand-made steps."""

from __future__ import annotations

from tests.report.page.records import event, streamed_job
from tightfit.report.page.lanes import MOST_STEPS, lanes


def test_the_step_that_is_shown_is_the_furthest_from_its_limit() -> None:
    """Of all but the first, which also places weights."""
    found = lanes(streamed_job())
    assert found is not None
    assert found.shown.number == 5
    assert found.shown.times_limit is not None
    assert found.shown.times_limit > 1.1


def test_of_many_steps_a_few_are_drawn_and_the_figures_of_all_are_kept() -> None:
    """The first, the shown and the last among them."""
    found = lanes(streamed_job(steps=300))
    assert found is not None
    assert found.steps == 300
    numbers = [step.number for step in found.drawn]
    assert len(numbers) <= MOST_STEPS
    assert numbers == sorted(numbers)
    assert {1, found.shown.number, 300} <= set(numbers)
    assert len(found.listed) == 300


def test_everything_that_is_drawn_is_inside_and_stalls_add_up() -> None:
    """Per cent of the width; the sum of the waits is the step's own figure."""
    found = lanes(streamed_job())
    assert found is not None
    for step in found.drawn:
        for use in step.uses:
            for time in (use.copy_start, use.copy_end, use.reached, use.start, use.end):
                assert time is not None
                assert 0 <= step.percent(time) <= 100
        assert step.stall is not None
        assert abs(sum(use.stall for use in step.uses) - step.stall) < 1e-9


def test_without_a_clock_there_is_no_figure() -> None:
    """Bytes alone make no lane."""
    use = {"name": "b", "moved_bytes": 5, "start": None}
    assert lanes([event(1.0, "streamed_step", seconds=None, blocks=[use])]) is None
    assert lanes([]) is None
