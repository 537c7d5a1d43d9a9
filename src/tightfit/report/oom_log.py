"""The log that a maintainer asks for: what is known of a job that memory ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

OOM_VERSION = 1
MOST_EVENTS = 1000
"""The newest events that a log has."""
_PRIVATE = frozenset(("prompt", "prompts", "negative", "negative_prompt"))
_PRIVATE_OPTIONS = frozenset(("--prompt", "--negative"))
HIDDEN = "(not kept)"


def oom_log(
    arguments: Sequence[str],
    *,
    error: str,
    report: Mapping[str, Any] | None,
    header: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    attempts: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """JSON values: the command, versions, ledger, attempts, and the last events.

    No prompt is in it, no content of a file, and no path but those that the user wrote.

    Args:
        arguments: of the command line.
        error: the sentence that the job ended with.
        report: of the job; None where it did not get as far.
        header: of its trace.
        events: the newest of its trace; no more than `MOST_EVENTS` are kept.
        attempts: every way that was tried, where the report does not say.
    """
    known = without_prompts(report or {})
    kept = [without_prompts(event) for event in events if event["event"] != "report"][-MOST_EVENTS:]
    head = {key: value for key, value in header.items() if key != "tightfit_trace"}
    counts = {kind: n for kind, n in (header.get("counts") or {}).items() if kind != "report"}
    told = sum(counts.values()) or len(kept)
    head["dropped"] = max(head.get("dropped") or 0, told - len(kept))
    return {
        "tightfit_oom": OOM_VERSION,
        "command": public_arguments(arguments),
        "error": error,
        **({"card": known["card"]} if known.get("card") else {}),
        **head,
        "ledger": known.get("ledger") or _planned(kept),
        "attempts": known.get("attempts") or without_prompts({"of": attempts})["of"],
        "report": known,
        "events": kept,
    }


def as_text(log: Mapping[str, Any]) -> str:
    """The text of the file: an event a line, so that people can read it."""
    head = {key: value for key, value in log.items() if key != "events"}
    lines = json.dumps(head, indent=2)[:-2]
    events = ",\n    ".join(json.dumps(event, separators=(",", ":")) for event in log["events"])
    return f'{lines},\n  "events": [\n    {events}\n  ]\n}}\n'


def public_arguments(arguments: Sequence[str]) -> list[str]:
    """The command line, without what a user wrote for a model to read."""
    found: list[str] = []
    hides = False
    for argument in arguments:
        option, given, _ = argument.partition("=")
        if hides:
            found.append(HIDDEN)
        elif given and option in _PRIVATE_OPTIONS:
            found.append(f"{option}={HIDDEN}")
        else:
            found.append(argument)
        hides = not hides and argument in _PRIVATE_OPTIONS
    return found


def without_prompts(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report, or an event, without what a user wrote for a model to read."""
    return {**_public(report)}


def _public(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if key in _PRIVATE and each is not None else _public(each)
            for key, each in value.items()
        }
    return [_public(each) for each in value] if isinstance(value, (list, tuple)) else value


def _planned(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ledger of the last plan that was made, where the report has none."""
    for event in reversed(events):
        if event["event"] == "plan":
            lines: Mapping[str, Any] = event["ledger"]
            return {line: {"bytes": size, "source": "predicted"} for line, size in lines.items()}
    return {}
