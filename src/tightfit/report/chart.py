"""Memory over time as text, from the events of a trace."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tightfit.units import format_bytes

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LABEL = 12  # a size has up to ten characters, such as 1023.9 MiB


@dataclass(frozen=True)
class Phase:
    """A stretch of time with a name, in seconds of the trace."""

    name: str
    start: float
    stop: float
    failed: bool = False


def chart(
    events: Sequence[Mapping[str, Any]], *, budget: int, width: int = 78, height: int = 12
) -> list[str]:
    """Lines of text: allocated memory over time, the budget above it, and the tries below.

    Solid blocks reach up to the least that was held during a call of the model, which is what
    stays when the call is over; light ones reach up to the most.

    Args:
        events: of a trace, in order; `memory`, `attempt`, `tile`, `oom` and `done` are read.
        budget: bytes at the top line.
        width, height: of the whole in characters and of the plot in rows.
    """
    samples = [(e["t"], e["allocated_bytes"]) for e in events if e["event"] == "memory"]
    if len(samples) < 2:
        return ["(no memory events)"]
    columns = max(10, width - _LABEL)
    start, stop = samples[0][0], max(samples[-1][0], samples[0][0] + 1e-6)
    cuts = [e["t"] for e in events if e["event"] in ("attempt", "tile", "oom", "done")]
    lows, highs = _columns(samples, sorted(cuts), start, stop, columns)
    top = max(budget, *highs)
    lines = [f"{format_bytes(top):>{_LABEL - 2}} ┬{'─' * (columns - 7)} budget"]
    for row in range(height, 0, -1):
        cells = "".join(
            _cell(low * height / top, high * height / top, row)
            for low, high in zip(lows, highs, strict=True)
        )
        label = format_bytes(top * (row - 1) // height) if (row - 1) % 4 == 0 else ""
        lines.append(f"{label:>{_LABEL - 2}} {'┤' if label else '│'}{cells}")
    lines.append(" " * (_LABEL - 1) + "└" + "─" * columns)
    lines.extend(_captions(phases(events), start, stop, columns))
    return lines


def phases(events: Sequence[Mapping[str, Any]]) -> list[Phase]:
    """The tries of the trace."""
    found: list[Phase] = []
    began: tuple[str, float] | None = None
    for event in events:
        kind = event["event"]
        if kind == "attempt" and event["stage"] != "load":
            began = (f"{event['stage']}, {event['rung']}", event["t"])
        elif kind in ("oom", "done") and began is not None and event["stage"] != "load":
            found.append(Phase(began[0], began[1], event["t"], failed=kind == "oom"))
            began = None
    return found


def _columns(
    samples: Sequence[tuple[float, int]],
    cuts: Sequence[float],
    start: float,
    stop: float,
    columns: int,
) -> tuple[list[int], list[int]]:
    """Least (over the whole call that a column lies in) and most (over the column), in bytes."""
    per_call: dict[int, int] = {}
    calls: list[set[int]] = [set() for _ in range(columns)]
    highs: list[int | None] = [None] * columns
    for at, value in samples:
        call = bisect_right(cuts, at)
        per_call[call] = min(value, per_call.get(call, value))
        column = min(columns - 1, int((at - start) / (stop - start) * columns))
        calls[column].add(call)
        highs[column] = max(value, highs[column] or 0)
    lows, full_highs = [], []
    low = high = 0
    for seen, most in zip(calls, highs, strict=True):
        low = min((per_call[call] for call in seen), default=low)
        high = low if most is None else most
        lows.append(low)
        full_highs.append(high)
    return lows, full_highs


def _cell(low: float, high: float, row: int) -> str:
    """One character of row `row` (1 is the lowest); heights are in rows."""
    if low >= row - 0.5:
        return "█"
    if high >= row:
        return "░"
    if high > row - 1:
        return _EIGHTHS[max(1, min(8, round((high - (row - 1)) * 8)))]
    return " "


def _captions(found: Sequence[Phase], start: float, stop: float, columns: int) -> list[str]:
    lines = []
    for phase in found:
        first = min(columns - 1, int((phase.start - start) / (stop - start) * columns))
        last = min(columns, max(first + 1, int((phase.stop - start) / (stop - start) * columns)))
        mark = "✗" if phase.failed else "✓"
        text = f"{mark} {phase.name}{': out of memory' if phase.failed else ''}"
        bar = "╶" * (last - first)
        room = columns - last
        line = (
            " " * first + bar + " " + text
            if len(text) + 1 <= room
            else " " * max(0, first - len(text) - 1) + text[-columns:] + " " + bar
        )
        lines.append(" " * _LABEL + line)
    return lines
