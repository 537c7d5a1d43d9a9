"""What a step did, in figures."""

from __future__ import annotations

import json

import pytest

from tightfit.place.streaming.trace import BlockTrace, StepTrace

LATE = BlockTrace("late", 800, copy_start=-1.0, copy_end=3.0, reached=2.0, start=3.0, end=4.0)
THERE = BlockTrace("there", 0, copy_start=None, copy_end=None, reached=4.0, start=4.0, end=9.0)
EARLY = BlockTrace("early", 400, copy_start=3.0, copy_end=5.0, reached=9.0, start=9.0, end=9.5)
UNTIMED = BlockTrace("x", 400, None, None, None, None, None)


def test_a_step_tells_its_limit_and_what_it_lost() -> None:
    """T is 10 s, of which compute waited for 1; copies took 6 s."""
    step = StepTrace(10.0, (LATE, THERE, EARLY))
    assert [block.stall_seconds for block in step.blocks] == [1.0, 0.0, 0.0]
    assert [block.compute_seconds for block in step.blocks] == [1.0, 5.0, 0.5]
    assert [block.copy_seconds for block in step.blocks] == [4.0, 0.0, 2.0]
    assert (step.moved_bytes, step.copy_seconds, step.link_rate) == (1200, 6.0, 200.0)
    assert (step.stall_seconds, step.compute_seconds, step.limit_seconds) == (1.0, 9.0, 9.0)
    assert step.times_limit == pytest.approx(10 / 9)


def test_where_the_link_is_slower_than_compute_it_is_the_limit() -> None:
    """The larger of the two."""
    step = StepTrace(4.0, (LATE,))
    assert (step.compute_seconds, step.copy_seconds, step.limit_seconds) == (3.0, 4.0, 4.0)


def test_without_a_clock_bytes_are_known_and_times_are_not() -> None:
    """As on a virtual card."""
    step = StepTrace(None, (UNTIMED, THERE))
    assert step.moved_bytes == 400
    assert (step.seconds, step.stall_seconds, step.copy_seconds) == (None, None, None)
    assert (step.compute_seconds, step.limit_seconds, step.times_limit) == (None, None, None)
    assert step.link_rate is None


def test_a_step_without_copies_has_no_rate() -> None:
    """Nothing is divided by nothing."""
    step = StepTrace(0.0, ())
    assert (step.moved_bytes, step.link_rate, step.times_limit) == (0, None, None)
    assert step.limit_seconds == 0


def test_reports_get_plain_values() -> None:
    """They can be written down as they are."""
    told = StepTrace(10.0, (LATE, THERE, EARLY)).as_dict()
    assert json.loads(json.dumps(told)) == told
    assert (told["seconds"], told["limit_seconds"], told["stall_ms"]) == (10.0, 9.0, 1000.0)
    assert told["link_bytes_per_second"] == 200.0
    blocks = told["blocks"]
    assert isinstance(blocks, list)
    assert [block["name"] for block in blocks] == ["late", "there", "early"]
    assert blocks[0]["stall_seconds"] == 1.0
