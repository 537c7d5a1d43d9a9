"""A trace as a timeline in the Trace Event Format, which Perfetto and Chrome's viewer open."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tightfit.report.trace_file import Trace

Line = dict[str, Any]
_PROCESS = 1
_MEMORY = {"memory": ("allocated_bytes", "reserved_bytes"), "others": ("bytes",)}
_POINTS = ("tile", "step", "moved", "evicted", "rests", "oom", "skipped", "recovered", "leak")


class _Tracks:
    """Rows of the timeline, numbered as they are first used."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers) + 1)

    def names(self) -> Iterator[Line]:
        """What a viewer calls them."""
        yield _meta("process_name", 0, {"name": "tightfit"})
        for name, number in self._numbers.items():
            yield _meta("thread_name", number, {"name": name})
            yield _meta("thread_sort_index", number, {"sort_index": number})


def as_timeline(trace: Trace) -> str:
    """JSON: stages and rungs, each network's copies, waits and computes on tracks, and memory.

    Times are microseconds. Copies, waits and computes come from `streamed_step` events, which the
    fine level has; those of which the card has no clock are left out.
    """
    tracks = _Tracks()
    tracks("stages"), tracks("rungs"), tracks("events")
    lines = [
        *_stages(trace, tracks("stages")),
        *_rungs(trace, tracks("rungs")),
        *_waits(trace, tracks),
        *_steps(trace, tracks),
        *_counters(trace),
        *_points(trace, tracks("events")),
    ]
    about = {
        key: value
        for key, value in trace.header.items()
        if isinstance(value, (str, int, float, dict))
    }
    return json.dumps(
        {
            "traceEvents": [*tracks.names(), *lines],
            "displayTimeUnit": "ms",
            "otherData": about,
        }
    )


def _stages(trace: Trace, track: int) -> Iterator[Line]:
    began: tuple[str, float] | None = None
    for event in trace.of("stage"):
        if began is not None:
            yield _span(began[0], began[1], event["t"], track)
        began = (event["stage"], event["t"])
    if began is not None:
        yield _span(began[0], began[1], max(began[1], _end(trace)), track)


def _rungs(trace: Trace, track: int) -> Iterator[Line]:
    began: tuple[str, float, Mapping[str, Any]] | None = None
    for event in trace.of("attempt", "done", "oom"):
        if event["event"] == "attempt":
            began = (f"{event['stage']}: {event['rung']}", event["t"], event)
        elif began is not None:
            name, start, attempt = began
            outcome = "ok" if event["event"] == "done" else "out of memory"
            figures = {"outcome": outcome, "held_bytes": attempt.get("held_bytes")}
            if "text" in event:
                figures["text"] = event["text"]
            yield _span(name, start, event["t"], track, **figures)
            began = None


def _waits(trace: Trace, tracks: Callable[[str], int]) -> Iterator[Line]:
    for event in trace.of("wait"):
        start = event["t"] - event["seconds"]
        yield _span(event["reason"], start, event["t"], tracks("waits"))


def _steps(trace: Trace, tracks: Callable[[str], int]) -> Iterator[Line]:
    for event in trace.of("streamed_step"):
        network, seconds = event["network"], event.get("seconds")
        if seconds is None:
            continue
        start = event.get("start")
        if start is None:
            start = event["t"] - seconds
        figures = {
            key: event.get(key)
            for key in ("limit_seconds", "times_limit", "moved_bytes", "stall_ms")
        }
        yield _span("step", start, start + seconds, tracks(f"{network}: steps"), **figures)
        for block in event["blocks"]:
            for name, first, last in (
                ("copies", "copy_start", "copy_end"),
                ("waits", "reached", "start"),
                ("computes", "start", "end"),
            ):
                begin, end = block[first], block[last]
                if begin is None or end is None or (name == "copies" and not block["moved_bytes"]):
                    continue
                moved = {"bytes": block["moved_bytes"]} if name == "copies" else {}
                track = tracks(f"{network}: {name}")
                yield _span(block["name"], start + begin, start + end, track, **moved)


def _counters(trace: Trace) -> Iterator[Line]:
    for event in trace.of(*_MEMORY):
        name = "memory" if event["event"] == "memory" else "other programs"
        figures = {key: event[key] for key in _MEMORY[event["event"]] if event.get(key) is not None}
        yield {"ph": "C", "name": name, "pid": _PROCESS, "ts": _micro(event["t"]), "args": figures}


def _points(trace: Trace, track: int) -> Iterator[Line]:
    for event in trace.of(*_POINTS):
        figures = {key: value for key, value in event.items() if key not in ("t", "event")}
        yield {
            "ph": "i",
            "s": "t",
            "name": event["event"],
            "pid": _PROCESS,
            "tid": track,
            "ts": _micro(event["t"]),
            "args": figures,
        }


def _span(name: str, start: float, stop: float, track: int, **figures: Any) -> Line:
    return {
        "ph": "X",
        "name": name,
        "pid": _PROCESS,
        "tid": track,
        "ts": _micro(start),
        "dur": max(0.0, round(_micro(stop) - _micro(start), 3)),
        "args": figures,
    }


def _meta(name: str, track: int, values: Line) -> Line:
    return {"ph": "M", "name": name, "pid": _PROCESS, "tid": track, "args": values}


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _end(trace: Trace) -> float:
    return float(trace.events[-1]["t"]) if trace.events else 0.0
