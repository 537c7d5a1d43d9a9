"""The log of a job that memory ended: what is in it, and what never is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tightfit.report.oom_log import HIDDEN, MOST_EVENTS, as_text, oom_log, public_arguments
from tightfit.report.trace_file import read_trace

SECRET = "a portrait of somebody"


def log(**more: Any) -> dict[str, Any]:
    """A log with a prompt everywhere that one may come from."""
    asked: dict[str, Any] = {
        "error": "Not enough memory.",
        "report": {
            "command": "generate",
            "input": {"prompts": [SECRET]},
            "card": {"name": "cuda:0", "allocator": "native"},
            "attempts": [{"stage": "denoise", "rung": "whole", "outcome": "oom"}],
            "output": {"items": [{"prompt": SECRET, "settings": {"negative": SECRET}}]},
        },
        "header": {"tightfit_trace": 2, "versions": {"torch": "2"}, "counts": {"memory": 5}},
        "events": [
            {"t": 0.0, "event": "memory", "allocated_bytes": 1, "reserved_bytes": 1},
            {"t": 1.0, "event": "report", "report": {"input": {"prompts": [SECRET]}}},
        ],
    }
    return oom_log(["generate", "m", "--prompt", SECRET, "-o", "a.png"], **asked | more)


def test_no_prompt_is_in_it() -> None:
    """Not from the command, the report, or an event."""
    text = as_text(log())
    assert SECRET not in text
    assert HIDDEN in text


@pytest.mark.parametrize(
    "given",
    [["--prompt", SECRET], [f"--prompt={SECRET}"], ["--negative", SECRET], ["--prompt", "--steps"]],
)
def test_the_command_is_there_without_what_a_model_reads(given: list[str]) -> None:
    """All other arguments are as they were typed."""
    public = public_arguments(["generate", *given, "-o", "a.png"])
    assert SECRET not in " ".join(public)
    assert HIDDEN in " ".join(public)
    assert public[0] == "generate"
    assert public[-2:] == ["-o", "a.png"]


def test_it_has_what_a_maintainer_asks_for(tmp_path: Path) -> None:
    """Command, versions, card, ledger, attempts and events; and it is read back as a trace."""
    path = tmp_path / "a.png.oom.json"
    path.write_text(as_text(log()), encoding="utf-8")
    trace = read_trace(path)
    assert trace.is_oom
    assert trace.header["command"][:2] == ["generate", "m"]
    assert trace.header["versions"] == {"torch": "2"}
    assert trace.header["card"]["name"] == "cuda:0"
    assert trace.header["attempts"][0]["outcome"] == "oom"
    assert [event["event"] for event in trace.events] == ["memory"]
    assert trace.dropped == 4


def test_the_newest_thousand_events_are_kept() -> None:
    """And how many there were before them."""
    events = [{"t": float(at), "event": "tile", "done": at} for at in range(3000)]
    made = log(events=events, header={"counts": {"tile": 5000}, "dropped": 2000})
    assert [event["done"] for event in made["events"]] == list(range(2000, 3000))
    assert len(made["events"]) == MOST_EVENTS
    assert made["dropped"] == 4000


def test_the_ledger_is_that_of_the_last_plan_where_the_report_has_none() -> None:
    """A job that failed has no measured one."""
    plans = [
        {"t": 0.0, "event": "plan", "name": "Net", "budget_bytes": 9, "ledger": {"ring": size}}
        for size in (3, 4)
    ]
    assert log(events=plans)["ledger"] == {"ring": {"bytes": 4, "source": "predicted"}}


def test_a_log_without_events_is_json_too() -> None:
    """A job that was refused before it began."""
    assert json.loads(as_text(log(events=[])))["events"] == []
