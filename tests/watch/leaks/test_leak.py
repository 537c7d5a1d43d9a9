"""A leak, as a line, as an event, and against what is allowed."""

from __future__ import annotations

import json

import pytest

from tightfit.units import MIB
from tightfit.watch import Recorder
from tightfit.watch.leaks import Found, Hold, Leak
from tightfit.watch.leaks.leak import ADVICE

LEAK = Leak(
    bytes=8 * MIB,
    shape=(2, 4),
    dtype="float16",
    device="cuda:0",
    kind=Hold.VIEW,
    chain=("module app", "cache[3]", "Tensor [2, 4] float16"),
    site="app.py:12",
)


def test_a_line_has_bytes_device_kind_chain_and_site() -> None:
    """All that a person needs."""
    assert LEAK.line() == (
        "8.0 MiB on cuda:0, view: module app → cache[3] → Tensor [2, 4] float16 (made at app.py:12)"
    )


def test_events_in_a_trace_are_leaks_again() -> None:
    """Through JSON, nothing lost."""
    recorder = Recorder()
    nameless = Leak(7, None, None, "cpu", Hold.HOST, ("grew",))
    Found((LEAK, nameless), {}, {}).tell(recorder)
    events = [json.loads(json.dumps(each)) for each in recorder.events()]
    assert [Leak.of_event(each) for each in events if each["event"] == "leak"] == [LEAK, nameless]


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        ("view", True),
        ("cycle", False),
        ("module app → cache*", True),
        ("*cache*", True),
        ("cache*", False),
    ],
)
def test_what_may_stay_is_a_kind_or_a_pattern(pattern: str, allowed: bool) -> None:
    """A pattern is for the whole chain."""
    assert LEAK.matches((pattern,)) is allowed
    assert not LEAK.matches(())


def test_there_is_advice_for_every_kind() -> None:
    """Nobody is left with a chain alone."""
    assert set(ADVICE) == set(Hold)
