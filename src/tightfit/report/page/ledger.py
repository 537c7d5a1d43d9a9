"""The ledger as bars, and the estimate beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tightfit.plan.ledger import CARD, HOST, OURS
from tightfit.report.page.fields import Event, budget_of, mapping, report_of, rows, text, whole
from tightfit.report.trace_file import Trace

_WORDS = {
    "held": "held before the job",
    "weights_resident": "weights that stay",
    "weights_idle": "weights of idle models",
    "ring": "ring that weights pass through",
    "conversion": "converted weights",
    "scratch": "scratch",
    "input": "input",
    "activations": "activations",
    "library_workspaces": "workspaces of libraries",
    "slack": "slack (reserved − allocated)",
    "context": "the driver's context",
    "held_by_others": "other programs",
    "reserve": "kept free (--reserve-vram)",
    "host_masters": "weights on the host",
    "host_pinned_asked": "pinned, asked for",
    "host_pinned_real": "pinned, in fact",
    "host_activations": "activations on the host",
}


@dataclass(frozen=True)
class Line:
    """One line.

    Attributes:
        key, label: its name in reports, and in words.
        bytes, source: what it came to, and how that is known.
        planned: what the plan had said; None where it did not.
        where: ``budget`` (bounded by it), ``card`` (beside it) or ``host``.
    """

    key: str
    label: str
    bytes: int | None
    source: str
    planned: int | None = None
    where: str = "budget"

    @property
    def most(self) -> int:
        """The longer of its bars."""
        return max(self.bytes or 0, self.planned or 0)


@dataclass(frozen=True)
class Books:
    """Attributes:
    lines: those that are not nothing, in the order of the house.
    budget: bytes; None where not known.
    estimate, source: the peak that was expected, and by what.
    of_whole: it is that of a whole run, and the job was done otherwise: not to be compared.
    peak: allocated, measured.
    peak_reserved: measured.
    """

    lines: tuple[Line, ...]
    budget: int | None
    estimate: int | None
    source: str
    of_whole: bool
    peak: int | None
    peak_reserved: int | None

    @property
    def top(self) -> int:
        """The longest bar."""
        sizes = [line.most for line in self.lines]
        sizes += [self.budget or 0, self.estimate or 0, self.peak or 0, self.peak_reserved or 0]
        return max([1, *sizes])

    @property
    def off(self) -> float | None:
        """The estimate's error as a share of the peak."""
        if not self.estimate or not self.peak or self.of_whole:
            return None
        return self.estimate / self.peak - 1


def books(trace: Trace) -> Books | None:
    """The ledger of a trace; None where neither a ledger nor an estimate was told."""
    report = report_of(trace)
    plans = [event for event in trace.events if event["event"] == "plan"]
    planned = max(map(_lines, plans), key=_ours, default={})
    came_to = _lines(report) or planned
    estimate = mapping(report, "estimate")
    expected = whole(estimate, "peak_bytes")
    source = text(estimate, "source")
    if expected is None and planned:
        slack, _ = planned.get("slack", (0, ""))
        expected, source = _ours(planned) - (slack or 0), "the plan"
    if not came_to and expected is None:
        return None
    keys = [key for key in (*OURS, *CARD, *HOST) if key in came_to or key in planned]
    keys += sorted({*came_to, *planned} - set(keys))
    lines = [_line(key, came_to, planned) for key in keys]
    return Books(
        tuple(line for line in lines if line.most),
        budget_of(trace),
        expected,
        source,
        _of_whole(report) and expected is not None,
        _or(whole(report, "peak_bytes"), trace.peak_allocated_bytes),
        _or(whole(report, "peak_reserved_bytes"), trace.peak_reserved_bytes),
    )


def _of_whole(report: Event) -> bool:
    """Whether a job was done in parts, or not at all, so that a whole run's peak was not seen."""
    rungs = [text(each, "rung") for each in rows(report, "attempts") if each.get("outcome") == "ok"]
    done = rungs[-1] if rungs else ""
    return bool(rows(report, "attempts")) and not done.startswith("whole")


def _ours(lines: Mapping[str, tuple[int | None, str]]) -> int:
    """What the budget has to hold of it."""
    return sum(lines[key][0] or 0 for key in OURS if key in lines)


def _lines(values: Event) -> dict[str, tuple[int | None, str]]:
    """Line → bytes and source, however the ledger is written."""
    ledger = values.get("ledger", values.get("lines"))
    if isinstance(ledger, Mapping):
        entries = ledger.items()
    elif isinstance(ledger, list):
        entries = {
            text(each, "line", "name"): each for each in ledger if isinstance(each, Mapping)
        }.items()
    else:
        known = {*OURS, *CARD, *HOST}
        entries = {key: value for key, value in values.items() if key in known}.items()
    found = {}
    for key, figure in entries:
        if isinstance(figure, Mapping):
            found[str(key)] = (whole(figure, "bytes"), text(figure, "source"))
        else:
            found[str(key)] = (whole({"bytes": figure}, "bytes"), "predicted")
    return found


def _line(
    key: str,
    came_to: Mapping[str, tuple[int | None, str]],
    planned: Mapping[str, tuple[int | None, str]],
) -> Line:
    amount, source = came_to.get(key, (None, ""))
    before = planned.get(key, (None, ""))[0] if came_to is not planned else None
    where = "card" if key in CARD else "host" if key.startswith("host") else "budget"
    return Line(key, _WORDS.get(key, key.replace("_", " ")), amount, source, before, where)


def _or(one: int | None, other: int | None) -> int | None:
    return other if one is None else one
