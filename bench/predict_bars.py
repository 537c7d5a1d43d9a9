"""How far predictions were off, whether that is within the bars, and a table of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rows import Row

from tightfit.units import MIB

CALIBRATED, UNCALIBRATED = "tightfit", "tightfit-uncalibrated"
ALLOCATED_BARS = {CALIBRATED: 0.03, UNCALIBRATED: 0.15}
RESERVED_BAR, UNDER_BAR = 0.08, 0.02
RANDOM = "random weights; seconds include the inputs, which are made on the host"


def off(predicted: int | None, measured: int | None, held: int = 0) -> float | None:
    """How far a prediction is above what was measured, as a part of it; `held` counts in neither.

    None where one is not known.
    """
    if predicted is None or measured is None or measured <= held:
        return None
    return (predicted - held) / (measured - held) - 1


def allocated_holds(row: Row) -> bool | None:
    """Whether allocated is within the bar; None where it is not known."""
    error = off(row.predicted_bytes, row.peak_allocated_bytes)
    return None if error is None else abs(error) <= ALLOCATED_BARS[row.who]


def reserved_holds(row: Row) -> bool | None:
    """Whether reserved is within the bar, and not below what was measured by more than a little."""
    error = off(row.predicted_reserved_bytes, row.peak_reserved_bytes)
    return None if error is None else -UNDER_BAR <= error <= RESERVED_BAR


def table(rows: Iterable[Row]) -> str:
    """A Markdown table, sizes in MiB: predicted / measured.

    "Activations" leaves out what was held before the call. What is the same in all notes is too.
    """
    head = (
        "job",
        "who",
        "allocated",
        "off by",
        "activations off by",
        "reserved",
        "off by",
        "seconds",
        "note",
    )
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        allocated = off(row.predicted_bytes, row.peak_allocated_bytes)
        reserved = off(row.predicted_reserved_bytes, row.peak_reserved_bytes)
        beyond = off(row.predicted_bytes, row.peak_allocated_bytes, row.baseline_bytes or 0)
        cells = (
            row.job.removeprefix("predict "),
            row.who,
            _both(row.predicted_bytes, row.peak_allocated_bytes),
            _marked(allocated, allocated_holds(row)),
            _percent(beyond),
            _both(row.predicted_reserved_bytes, row.peak_reserved_bytes),
            _marked(reserved, reserved_holds(row)),
            "" if row.seconds is None else f"{row.seconds:.2f}",
            row.note.removeprefix(RANDOM).removeprefix("; "),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """How many predictions hold, by who made them."""
    lines = []
    for who, bar in ALLOCATED_BARS.items():
        mine = [row for row in rows if row.who == who]
        allocated = [held for row in mine if (held := allocated_holds(row)) is not None]
        reserved = [held for row in mine if (held := reserved_holds(row)) is not None]
        lines.append(
            f"{who}: allocated within {bar:.0%} in {sum(allocated)} of {len(allocated)}; reserved "
            f"within {RESERVED_BAR:.0%} and not under by more than {UNDER_BAR:.0%} in "
            f"{sum(reserved)} of {len(reserved)}; {len(mine) - len(allocated)} not measured or "
            "not predicted"
        )
    return "\n".join(lines)


def _both(predicted: int | None, measured: int | None) -> str:
    return " / ".join(
        "?" if size is None else f"{size / MIB:,.0f}" for size in (predicted, measured)
    )


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"


def _marked(error: float | None, holds: bool | None) -> str:
    return _percent(error) if holds in (None, True) else f"**{_percent(error)}**"
