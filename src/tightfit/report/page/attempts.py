"""Every rung that was tried or skipped, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.report.page.bands import Band
from tightfit.report.page.fields import Event, at, report_of, rows, text, whole
from tightfit.report.trace_file import Trace

MOST_ROWS = 300


@dataclass(frozen=True)
class Attempt:
    """One line; bytes are None where not known."""

    stage: str
    rung: str
    outcome: str
    reason: str = ""
    tile: str = ""
    held: int | None = None
    peak: int | None = None
    reserved: int | None = None
    error_bound: float | None = None


def attempts(trace: Trace, tries: Sequence[Band]) -> list[Attempt]:
    """As the report has them; from the events where there is no report."""
    reported = rows(report_of(trace), "attempts")
    if reported:
        return [_reported(each) for each in reported]
    found = [
        (
            band.start,
            Attempt(
                *_names(band.name),
                outcome={"open": "not ended"}.get(band.outcome, band.outcome),
                reason=band.why,
                held=band.held,
                peak=band.peak,
            ),
        )
        for band in tries
    ]
    for event in trace.events:
        if event["event"] == "skipped":
            stage, rung = text(event, "stage"), text(event, "rung")
            skip = Attempt(stage, rung, "skipped", text(event, "reason"))
            found.append((at(event), skip))
    return [attempt for _, attempt in sorted(found, key=lambda pair: pair[0])]


def _names(name: str) -> tuple[str, str]:
    stage, _, rung = name.partition(": ")
    return (stage, rung) if rung else ("", stage)


def _reported(entry: Event) -> Attempt:
    tile = entry.get("tile")
    bound = entry.get("error_bound")
    return Attempt(
        text(entry, "stage"),
        text(entry, "rung"),
        text(entry, "outcome"),
        text(entry, "reason"),
        "x".join(map(str, tile)) if isinstance(tile, list | tuple) else text(entry, "tile"),
        whole(entry, "held_before_bytes"),
        whole(entry, "peak_bytes"),
        whole(entry, "peak_reserved_bytes"),
        bound if isinstance(bound, float) else None,
    )
