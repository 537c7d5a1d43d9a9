"""Rows of a benchmark: what they hold, how runs become one row, the file, and a table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tightfit.units import MIB

VERSION = 1


@dataclass(frozen=True)
class Try:
    """One way that was tried; sizes in bytes, None where the card cannot tell.

    Attributes:
        rung: its name, such as ``whole`` or ``tiles 384x384``.
        outcome: ``ok``, ``oom`` or ``skipped``.
        tile: (height, width) in pixels, None for a whole run.
        held_before_bytes: allocated when it started.
        baseline_bytes: what should have been.
        peak_bytes: most allocated while it ran.
        refusals: requests that the allocator turned down, raised or not.
    """

    rung: str
    outcome: str
    tile: tuple[int, ...] | None = None
    held_before_bytes: int | None = None
    baseline_bytes: int | None = None
    peak_bytes: int | None = None
    refusals: int | None = None


@dataclass(frozen=True)
class Row:
    """One job done by one way of doing it; unknown is None.

    Attributes:
        job: the same text for all rows that belong side by side.
        who: ``tightfit``, a variant of it, ``whole``, or a peer.
        seconds: median over whole calls, host tensor to host tensor.
        limit_seconds: the least that is possible, where that is known.
        budget_bytes: what may be used of the card.
        peak_reserved_bytes: the most that the allocator took, over all tries.
        peak_allocated_bytes: likewise in live tensors.
        bit_equal: the result is that of the whole run, bit for bit.
        rms_error: relative rms of the difference from the whole run.
        predicted_bytes: allocated, as planned for the rung that held.
        predicted_reserved_bytes: likewise reserved.
        note: what a reader should know.
        completed: there is a result.
        attempts: every way that was tried or skipped, in order.
        held_before_fallback_bytes: allocated when the first try after a failed one started.
        baseline_bytes: allocated before the first try: weights, input, library workspaces.
        library_workspace_bytes: allocated before weights and input came.
        weights_bytes: of the model.
        input_bytes: of the input as it lay on the card.
        smallest_tile_bytes: what the smallest tile needs in all, measured.
        all_seconds: of each run.
    """

    job: str
    who: str
    seconds: float | None = None
    limit_seconds: float | None = None
    budget_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    bit_equal: bool | None = None
    rms_error: float | None = None
    predicted_bytes: int | None = None
    predicted_reserved_bytes: int | None = None
    note: str = ""
    completed: bool = True
    attempts: tuple[Try, ...] = ()
    held_before_fallback_bytes: int | None = None
    baseline_bytes: int | None = None
    library_workspace_bytes: int | None = None
    weights_bytes: int | None = None
    input_bytes: int | None = None
    smallest_tile_bytes: int | None = None
    all_seconds: tuple[float, ...] = ()

    @property
    def times(self) -> tuple[float, ...]:
        """Seconds of each run that this row stands for."""
        if self.all_seconds or self.seconds is None:
            return self.all_seconds
        return (self.seconds,)

    @property
    def excess_bytes(self) -> int | None:
        """Held when the fallback started, beyond weights, input and library workspaces."""
        parts = (self.weights_bytes, self.input_bytes, self.library_workspace_bytes)
        if self.held_before_fallback_bytes is None or None in parts:
            return None
        return self.held_before_fallback_bytes - sum(part or 0 for part in parts)


def first_fallback(tries: Iterable[Try]) -> Try | None:
    """The first try that followed a failed one."""
    failed = False
    for attempt in tries:
        if failed and attempt.outcome != "skipped":
            return attempt
        failed = failed or attempt.outcome == "oom"
    return None


def merged(runs: Sequence[Row]) -> Row:
    """One row of several runs of the same job: median time, worst figures, the first's story."""
    first = runs[0]
    times = tuple(time for run in runs for time in run.times)
    told = [[(t.rung, t.outcome) for t in run.attempts] for run in runs]
    note = first.note
    if any(story != told[0] for story in told):
        note = _joined(note, "the tries differed between runs")
    return replace(
        first,
        seconds=median(times) if times else None,
        all_seconds=times,
        completed=all(run.completed for run in runs),
        peak_reserved_bytes=_worst(run.peak_reserved_bytes for run in runs),
        peak_allocated_bytes=_worst(run.peak_allocated_bytes for run in runs),
        held_before_fallback_bytes=_worst(run.held_before_fallback_bytes for run in runs),
        bit_equal=None if first.bit_equal is None else all(run.bit_equal for run in runs),
        rms_error=_worst(run.rms_error for run in runs),
        note=note,
    )


def write(
    path: Path,
    rows: Sequence[Row],
    *,
    machine: Mapping[str, Any],
    versions: Mapping[str, Any],
) -> None:
    """Write a results file, whole or not at all."""
    content = {
        "version": VERSION,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": dict(machine),
        "versions": dict(versions),
        "rows": [asdict(row) for row in rows],
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def read(path: Path) -> tuple[list[Row], dict[str, Any], dict[str, Any]]:
    """Rows, machine and versions of a file that `write` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [_row(row) for row in content["rows"]], content["machine"], content["versions"]


def table(rows: Iterable[Row]) -> str:
    """A Markdown table; sizes in MiB."""
    head = (
        "job",
        "who",
        "done by",
        "seconds",
        "peak allocated",
        "peak reserved",
        "fallback starts at",
        "over weights + input",
        "rms error",
    )
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        held = [attempt for attempt in row.attempts if attempt.outcome == "ok"]
        cells = (
            row.job,
            row.who,
            held[-1].rung if row.completed and held else "**nothing: out of memory**",
            "" if row.seconds is None else f"{row.seconds:.2f}",
            _mib(row.peak_allocated_bytes),
            _mib(row.peak_reserved_bytes),
            _mib(row.held_before_fallback_bytes),
            "" if row.excess_bytes is None else f"{row.excess_bytes / MIB:+.1f}",
            _error(row),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _row(content: dict[str, Any]) -> Row:
    tries = tuple(
        Try(**{**attempt, "tile": tuple(attempt["tile"]) if attempt["tile"] else None})
        for attempt in content["attempts"]
    )
    return Row(**{**content, "attempts": tries, "all_seconds": tuple(content["all_seconds"])})


def _worst(figures: Iterable[Any]) -> Any:
    known = [figure for figure in figures if figure is not None]
    return max(known) if known else None


def _joined(note: str, more: str) -> str:
    return f"{note}; {more}" if note else more


def _mib(size: int | None) -> str:
    return "" if size is None else f"{size / MIB:,.0f}"


def _error(row: Row) -> str:
    if row.bit_equal:
        return "0 (bit-equal)"
    return "" if row.rms_error is None else f"{row.rms_error:.3g}"
