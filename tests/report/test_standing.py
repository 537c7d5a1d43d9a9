"""One ledger, from events as they come."""

from __future__ import annotations

from typing import Any

from tests.report.made import MIB, placed
from tightfit.report.standing import Standing


def standing(*events: dict[str, Any]) -> Standing:
    now = Standing()
    for event in events:
        now.take(event)
    return now


def test_weights_are_where_the_last_events_say() -> None:
    """Placed, streamed, evicted; at rest nothing is on the card."""
    events = [
        placed(0, 40, 40, 40),
        placed(1, 20, 60, 60),
        placed(2, 30, 60, 60, state="streamed"),
        {"event": "evicted", "network": "transformer", "block": "blocks.1", "bytes": 20 * MIB},
    ]
    network = standing(*events).networks["transformer"]
    assert (network.resident, network.streamed) == (40 * MIB, 30 * MIB)
    rests = {"event": "rests", "network": "transformer", "bytes": 40 * MIB}
    now = standing(*events, rests)
    assert now.networks["transformer"].rests
    assert now.last[-1] == "transformer rests: 40.0 MiB came free"
    assert now.peak == 60 * MIB


def test_it_knows_what_is_done_now() -> None:
    """A stage, then its steps; a try, then its tiles."""
    now = standing(
        {"event": "stage", "stage": "denoise"}, {"event": "step", "done": 3, "total": 28}
    )
    assert (now.stage, now.done, now.total) == ("denoise", 3, 28)
    now.take({"event": "attempt", "stage": "decode", "rung": "strips"})
    assert (now.stage, now.rung, now.done) == ("decode", "strips", 0)


def test_kinds_that_come_later_are_passed_over() -> None:
    """A newer job may be watched."""
    assert standing({"event": "something new"}) == Standing()


def test_a_card_without_books_is_watched_too() -> None:
    """Unknown is not shown."""
    now = standing(placed(0, 40, 0, 0, reserved_bytes=None, allocated_bytes=None))
    assert (now.allocated, now.reserved, now.peak) == (None, None, 0)
