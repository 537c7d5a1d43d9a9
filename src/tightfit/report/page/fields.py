"""What an event says, whatever it says: a figure that is none counts as unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tightfit.report.trace_file import Trace
from tightfit.units import format_bytes

Event = Mapping[str, Any]
UNKNOWN = "unknown"


def real(values: Event, *names: str) -> float | None:
    """The first of these figures that is a finite number; None where none is."""
    for name in names:
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value):
            return float(value)
    return None


def whole(values: Event, *names: str) -> int | None:
    """Like `real`, as an integer: bytes, or a count."""
    for name in names:
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return round(value)
    return None


def text(values: Event, *names: str) -> str:
    """The first of these that says something, as text; empty where none does."""
    for name in names:
        value = values.get(name)
        if value is not None and not isinstance(value, Mapping) and str(value):
            return str(value)
    return ""


def mapping(values: Event, name: str) -> Event:
    """A mapping; an empty one where there is none."""
    value = values.get(name)
    return value if isinstance(value, Mapping) else {}


def rows(values: Event, name: str) -> list[Event]:
    """The mappings in a list; what else is in it is left out."""
    value = values.get(name)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [each for each in value if isinstance(each, Mapping)]


def words(values: Event, name: str) -> list[str]:
    """The sentences in a list."""
    value = values.get(name)
    return [str(each) for each in value] if isinstance(value, list | tuple) else []


def at(event: Event) -> float:
    """Seconds since the start; 0 where the event does not say."""
    return real(event, "t") or 0.0


def in_order(events: Iterable[Event]) -> list[Event]:
    """By when they were over.

    A streamed step is told later than it was: it began at `start`, and where its length is not
    known it was over when the next one of its network began.
    """
    timed: list[tuple[float, Event]] = []
    later: dict[str, float] = {}
    for event in reversed(list(events)):
        start = real(event, "start") if event["event"] == "streamed_step" else None
        over = at(event)
        if start is not None:
            network, seconds = text(event, "network"), real(event, "seconds")
            over = later.get(network, over) if seconds is None else start + seconds
            later[network] = start
        timed.append((over, event))
    timed.reverse()
    return [event for _, event in sorted(timed, key=_first)]


def _first(pair: tuple[float, Event]) -> float:
    return pair[0]


def size(amount: int | None) -> str:
    """Bytes for people."""
    return UNKNOWN if amount is None else format_bytes(amount)


def span(seconds: float | None) -> str:
    """A time for people: ``34.5 s``, ``12.3 ms``, ``2 min 5 s``."""
    if seconds is None:
        return UNKNOWN
    if abs(seconds) >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    if abs(seconds) >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.3g} ms"


def report_of(trace: Trace) -> Event:
    """The fields of the job's report: of its last event, or of the header of a log."""
    for event in reversed(trace.events):
        if event["event"] == "report":
            return mapping(event, "report") or event
    return mapping(trace.header, "report") or trace.header


def budget_of(trace: Trace) -> int | None:
    """What could be used, in bytes."""
    report = report_of(trace)
    plans = [event for event in trace.events if event["event"] == "plan"]
    for values in (report, *reversed(plans), trace.header):
        known = whole(values, "budget_bytes", "budget")
        if known:
            return known
    return None
