"""A trace in a screenful of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tightfit.report.chart import chart
from tightfit.report.modules import modules, table
from tightfit.report.trace_file import Trace
from tightfit.units import format_bytes


def summary(trace: Trace) -> list[str]:
    """Lines: what it is of, the figures, memory over time, each try, and how the job ended."""
    return [
        *_about(trace),
        *_chart(trace),
        *_tries(trace),
        *_weights(trace),
        *_unseen(trace),
        *_ended(trace),
    ]


def _about(trace: Trace) -> list[str]:
    header = trace.header
    card: Mapping[str, Any] = header.get("card") or {}
    versions: Mapping[str, Any] = header.get("versions") or {}
    where = f" on {card['name']} ({card['allocator']})" if card else ""
    what = "Log of a job that memory ended" if trace.is_oom else "Trace of a job"
    lines = [f"{what}{where}."]
    if header.get("command"):
        lines.append(f"Command: tightfit {' '.join(map(str, header['command']))}")
    if versions:
        lines.append("Versions: " + ", ".join(f"{name} {each}" for name, each in versions.items()))
    kinds = Counter(event["event"] for event in trace.events)
    seconds = trace.events[-1]["t"] if trace.events else 0.0
    lines.append(f"Events: {sum(kinds.values())} in {seconds:.2f} s{_missing(trace)}.")
    peaks = [
        f"{format_bytes(size)} {word}"
        for size, word in (
            (trace.peak_allocated_bytes, "allocated"),
            (trace.peak_reserved_bytes, "reserved"),
        )
        if size
    ]
    if peaks:
        lines.append(f"Peak: {', '.join(peaks)}.")
    return lines


def _missing(trace: Trace) -> str:
    dropped = f"; {trace.dropped} older ones are not in it" if trace.dropped else ""
    cut = "; the last line was cut off, and is left out" if trace.truncated else ""
    return dropped + cut


def _chart(trace: Trace) -> list[str]:
    if sum(event["event"] == "memory" for event in trace.events) < 2:
        return []
    budget = _report(trace).get("budget_bytes") or trace.peak_reserved_bytes or 0
    return ["", *chart([e for e in trace.events if "t" in e], budget=budget), ""]


def _tries(trace: Trace) -> list[str]:
    lines = []
    for each in _report(trace).get("attempts") or ():
        peak = each.get("peak_bytes")
        high = "" if peak is None else f", peak {format_bytes(peak)}"
        why = f": {each['reason']}" if each.get("reason") else ""
        lines.append(f"  {each['stage']}, {each['rung']}: {each['outcome']}{high}{why}")
    if lines:
        return ["Tries:", *lines]
    for event in trace.of("oom", "done", "skipped"):
        text = event.get("text") or event.get("reason")
        tail = f": {text}" if text else ""
        lines.append(f"  {event['stage']}, {event['rung']}: {event['event']}{tail}")
    return ["Tries:", *lines] if lines else []


def _weights(trace: Trace) -> list[str]:
    rows = [row for row in modules(trace) if row.n is not None]
    if not rows:
        return []
    states = Counter(row.state for row in rows)
    sums = {state: sum(row.module for row in rows if row.state == state) for state in states}
    told = ", ".join(f"{n} {state} ({format_bytes(sums[state])})" for state, n in states.items())
    return [f"Blocks placed: {told}.", table(trace)[-1][:1].upper() + table(trace)[-1][1:] + "."]


def _unseen(trace: Trace) -> list[str]:
    return [f"Not seen: {event['text']}." for event in trace.of("unseen")]


def _ended(trace: Trace) -> list[str]:
    error = trace.header.get("error") or _report(trace).get("error")
    return ["", str(error)] if error else []


def _report(trace: Trace) -> Mapping[str, Any]:
    found = trace.header.get("report")
    if isinstance(found, Mapping):
        return found
    for event in reversed(trace.events):
        if event["event"] == "report" and isinstance(event.get("report"), Mapping):
            told: Mapping[str, Any] = event["report"]
            return told
    return {}
