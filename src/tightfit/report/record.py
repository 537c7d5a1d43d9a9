"""The report of a job: plain values under the names that DESIGN §9 fixes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

REPORT_VERSION = 1


@dataclass(frozen=True)
class Report:
    """What a job did. Sizes are integers in bytes, allocated unless the name says reserved.

    Attributes:
        command: ``encode`` or ``decode``.
        input, model, output: what went in, ran, and came out.
        card: name, kind, allocator, total_bytes.
        budget_bytes: what could be used.
        estimate: fixed_bytes, slope (bytes per sample), peak_bytes, source.
        ledger: line → {bytes, source}.
        attempts: every rung in order, with stage, rung, outcome, reason, tile and bytes.
        before_bytes, after_bytes: allocated before and after the job.
        baseline_bytes: weights and input, when the first attempt began.
        peak_bytes, peak_reserved_bytes: the highest during the job.
        exact: the result differs from a whole run by rounding alone.
        error_bound: relative rms against a whole run; null where it is not known.
        adjusted: what was changed of what was asked.
        warnings: what a user should know.
        error: the sentence of a job that failed, else null.
        seconds: wall time of the job.
    """

    command: str
    input: Mapping[str, Any]
    model: Mapping[str, Any]
    card: Mapping[str, Any]
    budget_bytes: int
    estimate: Mapping[str, Any] = field(default_factory=dict)
    ledger: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    attempts: Sequence[Mapping[str, Any]] = ()
    before_bytes: int | None = None
    baseline_bytes: int | None = None
    peak_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    after_bytes: int | None = None
    exact: bool | None = None
    error_bound: float | None = None
    adjusted: Sequence[str] = ()
    warnings: Sequence[str] = ()
    output: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0
    stages: Sequence[Mapping[str, Any]] = ()
    version: int = REPORT_VERSION

    def with_output(self, **facts: Any) -> Report:
        """The same report, with more about the output."""
        return replace(self, output={**self.output, **facts})

    def with_adjusted(self, *notes: str) -> Report:
        """The same report, with more that was changed."""
        return replace(self, adjusted=[*self.adjusted, *notes])

    def as_dict(self) -> dict[str, Any]:
        """JSON values, the version first."""
        values = asdict(self)
        return {"version": values.pop("version"), **values}

    def _repr_html_(self) -> str:
        """What notebooks show."""
        from tightfit.report.notebook import card  # jinja2 is not loaded for anything else

        return card(self)

    def to_json(self) -> str:
        """The text of a report file."""
        return json.dumps(self.as_dict(), indent=2) + "\n"
