"""All that the page shows of a trace, in one value."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.report.page.attempts import Attempt, attempts
from tightfit.report.page.bands import Band, stages, tries
from tightfit.report.page.callers import Look, callers
from tightfit.report.page.curves import Curve, curve, samples_of
from tightfit.report.page.fields import Event, at, budget_of, report_of, text, whole, words
from tightfit.report.page.holders import Holders, holders
from tightfit.report.page.lanes import Lanes, lanes
from tightfit.report.page.leaks import Leak, leaks
from tightfit.report.page.ledger import Books, books
from tightfit.report.page.moved import ALLOCATED, RESERVED, samples
from tightfit.report.page.residency import Residency, residency
from tightfit.report.page.tiles import Picture, picture
from tightfit.report.trace_file import Trace

_LOOKS = ("memory", "placed", "ring")
"""Kinds of events that say how the card looks then."""


@dataclass(frozen=True)
class Story:
    """Attributes:
    trace: what it is told from.
    report: fields of the job's report; those of the header where there is none.
    allocated, reserved, others: over time; None where nothing was sampled.
    start, stop: seconds.
    budget: bytes.
    peak, peak_reserved: exact, also where the moment itself was dropped.
    baseline, after: bytes before the first try, and when the job was over.
    adjusted, warnings: sentences of the report.
    unseen: what the trace cannot show.
    looks: which code held what; none where the trace has no fine level.
    """

    trace: Trace
    report: Event
    allocated: Curve | None
    reserved: Curve | None
    others: Curve | None
    start: float
    stop: float
    budget: int | None
    peak: int | None
    peak_reserved: int | None
    baseline: int | None
    after: int | None
    stages: list[Band]
    tries: list[Band]
    attempts: list[Attempt]
    holders: Holders
    residency: Residency | None
    lanes: Lanes | None
    books: Books | None
    picture: Picture | None
    leaks: list[Leak]
    adjusted: list[str]
    warnings: list[str]
    unseen: list[str]
    looks: list[Look]

    @property
    def failed(self) -> list[Band]:
        """The tries that ran out of memory."""
        return [band for band in self.tries if band.failed]

    @property
    def top(self) -> int:
        """Bytes at the top of the chart: the budget, the peaks and what was refused are below."""
        sizes = [self.budget or 0]
        for figure in (self.allocated, self.reserved):
            sizes.append(figure.peak if figure is not None else 0)
        sizes += [(band.held_at_refusal or 0) + (band.refused or 0) for band in self.failed]
        most = max(sizes)
        drawn = max([*sizes[1:3], 1])
        if self.budget == most and most > 4 * drawn:
            most = int(1.6 * drawn)  # a budget far above all that was held would flatten it
        return max(1, int(1.13 * most))


def tell(trace: Trace) -> Story:
    """Read the whole trace; what it does not say is None or empty."""
    events = trace.events
    allocated = curve(samples(trace, ALLOCATED, _LOOKS, "allocated_bytes"))
    times = [at(event) for event in events]
    start, stop = min(times, default=0.0), max(times, default=0.0)
    report = report_of(trace)
    attempted = tries(events, allocated, stop)
    baselines = [whole(event, "bytes") for event in events if event["event"] == "baseline"]
    ends = [whole(event, "held_bytes") for event in events if event["event"] == "end"]
    return Story(
        trace=trace,
        report=report,
        allocated=allocated,
        reserved=curve(samples(trace, RESERVED, _LOOKS, "reserved_bytes")),
        others=curve(samples_of(events, ("others",), "bytes")),
        start=start,
        stop=max(stop, start + 1e-6),
        budget=budget_of(trace),
        peak=trace.peak_allocated_bytes,
        peak_reserved=trace.peak_reserved_bytes,
        baseline=_or(whole(report, "baseline_bytes"), baselines),
        after=_or(whole(report, "after_bytes"), ends),
        stages=stages(events, stop),
        tries=attempted,
        attempts=attempts(trace, attempted),
        holders=holders(events),
        residency=residency(events),
        lanes=lanes(events),
        books=books(trace),
        picture=picture(trace, allocated),
        leaks=leaks(events),
        adjusted=words(report, "adjusted"),
        warnings=words(report, "warnings"),
        unseen=list(dict.fromkeys(text(each, "text") for each in trace.of("unseen"))),
        looks=callers(events),
    )


def _or(known: int | None, told: list[int | None]) -> int | None:
    return told[-1] if known is None and told else known
