"""The one line of advice: what it says follows from the trace."""

from __future__ import annotations

from typing import Any

import pytest

from tests.report.page import records
from tests.report.page.records import BUDGET, FLOOR, MIB
from tightfit.report.page.advice import Advice, advice
from tightfit.report.page.story import tell
from tightfit.units import format_bytes


def advised(events: list[dict[str, Any]], **facts: Any) -> Advice:
    """On a trace."""
    return advice(tell(records.of(events, **facts)))


def without(events: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    """The other events."""
    return [each for each in events if each["event"] not in kinds]


def whole_job(peak: int, reserved: int | None = None, **report: Any) -> list[dict[str, Any]]:
    """One try that held."""
    return [
        records.event(0.0, "attempt", stage="decode", rung="whole", held_bytes=0),
        records.memory(1.0, peak, reserved),
        records.event(2.0, "done", stage="decode", rung="whole"),
        records.event(2.1, "report", report={"budget_bytes": BUDGET, **report}),
    ]


def test_a_job_that_memory_ended_is_told_what_was_missing() -> None:
    """What was held and what was refused, less the budget."""
    events = [each for each in records.seed_job() if each["t"] < 2.45]
    found = advised([*events, records.event(2.45, "report", report=records.report())])
    missing = 2_960 * MIB + records.REFUSED - BUDGET
    assert f"{format_bytes(missing)} beyond the budget" in found.text
    assert found.figure == "memory"


def test_what_stayed_comes_with_its_holder() -> None:
    """Before stalls."""
    found = advised(records.streamed_job())
    assert "pipe.vae → _feat_map[3] → tensor" in found.text
    assert found.figure == "leaks"


def test_a_failed_try_that_is_still_held_is_the_figure_of_the_first_seed() -> None:
    """More than the baseline after it was cleaned up."""
    found = advised(records.seed_job(held_after_oom=FLOOR + 500 * MIB))
    assert format_bytes(500 * MIB) in found.text
    assert "still held" in found.text


def test_a_retry_inside_the_handler_is_told_to_leave_it() -> None:
    """Nobody cleaned up, and the next try began with more than the one that failed."""
    events = without(records.seed_job(held_after_oom=FLOOR + 500 * MIB), "recovered")
    found = advised(events)
    assert f"{format_bytes(500 * MIB)} of the failed try were still held" in found.text
    assert "Leave the `except` block" in found.text
    assert "still held" not in advised(without(records.seed_job(), "recovered")).text


def test_what_was_held_in_a_handler_is_not_said_to_have_stayed() -> None:
    """The trace says when it was there."""
    held = {"bytes": 5 * MIB, "hold": "exception", "chain": ["a", "b"]}
    leak = records.event(2.3, "leak", moment="in the handler of the failed try", **held)
    found = advised([*records.seed_job(), leak])
    assert "5.0 MiB were still held in the handler of the failed try" in found.text
    assert "by the error that is being handled" in found.text
    assert "Leave the `except` block before trying again." in found.text
    assert "when the work was over" not in found.text


def test_a_failed_try_that_was_let_go_says_what_it_cost() -> None:
    """The seconds of it, and what it would have needed."""
    found = advised(records.seed_job())
    assert "took 1.5 s" in found.text
    assert format_bytes(2_960 * MIB + records.REFUSED) in found.text


def test_a_step_far_from_its_limit_names_the_wait() -> None:
    """The slowest against its limit."""
    found = advised(without(records.streamed_job(), "leak"))
    assert "Step 5 took 1.20 times its limit" in found.text
    assert found.figure == "lanes"


def test_slack_is_named_where_room_was_short() -> None:
    """And not where there was plenty."""
    short = advised(whole_job(2_000 * MIB, 2_900 * MIB))
    assert format_bytes(900 * MIB) in short.text
    plenty = advised(whole_job(300 * MIB, 500 * MIB))
    assert "never used" in plenty.text


def test_an_estimate_that_was_far_off_is_told() -> None:
    """Of a whole run against a whole run."""
    attempts = [{"stage": "decode", "rung": "whole", "outcome": "ok"}]
    facts = {"estimate": {"peak_bytes": 3_000 * MIB, "source": "dry run"}, "attempts": attempts}
    found = advised(whole_job(2_000 * MIB, **facts))
    assert "50% above the peak" in found.text
    assert found.figure == "ledger"


def test_the_estimate_of_a_whole_is_not_held_against_tiles() -> None:
    """The whole was never run; the seed's job was done in tiles."""
    story = tell(records.of(records.seed_job()))
    assert story.books is not None
    assert story.books.of_whole
    assert story.books.off is None


@pytest.mark.parametrize("events", [[], [records.event(0.0, "stage", stage="load")]])
def test_of_no_samples_there_is_nothing_to_advise(events: list[dict[str, Any]]) -> None:
    """And that is what is said."""
    assert "nothing to advise" in advised(events).text


def test_a_job_that_went_well_is_told_so() -> None:
    """Close to the budget, without a failure."""
    found = advised(whole_job(2_800 * MIB))
    assert found.text.startswith("Nothing to mend")
