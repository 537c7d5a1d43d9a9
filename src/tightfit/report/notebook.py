"""A report as a small card for notebooks: HTML without a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tightfit.report.page.fields import mapping, size, span, text, whole
from tightfit.report.page.page import environment

if TYPE_CHECKING:
    from tightfit.report.record import Report

_MOST_ATTEMPTS = 8
_OUTCOMES = {"ok": "✓ done", "oom": "✗ out of memory", "skipped": "– skipped"}


def card(report: Report) -> str:
    """HTML that a notebook shows in place of the report; its texts are escaped.

    Colours and fonts are those around it, so that it is readable in light and dark notebooks, and
    it has no script and no style sheet, which notebooks that are not trusted drop.
    """
    attempts = [_row(each) for each in report.attempts]
    used = report.peak_reserved_bytes or report.peak_bytes
    template = environment().get_template("card.html.jinja")
    return template.render(
        report=report,
        title=_title(report),
        outcome=_outcome(report),
        used=used,
        figures=[(name, value) for name, value in _figures(report) if value],
        attempts=attempts[-_MOST_ATTEMPTS:],
        left_out=max(0, len(attempts) - _MOST_ATTEMPTS),
        notes=[*report.adjusted, *report.warnings],
    )


def _title(report: Report) -> str:
    names = (report.command, text(report.model, "name", "spec"), text(report.card, "name"))
    return " · ".join(name for name in names if name)


def _outcome(report: Report) -> tuple[str, str]:
    last = report.attempts[-1] if report.attempts else {}
    if report.error:
        return ("oom" if last.get("outcome") == "oom" else "failed"), report.error
    failed = sum(each.get("outcome") == "oom" for each in report.attempts)
    after = f", after {failed} out-of-memory {'try' if failed == 1 else 'tries'}" if failed else ""
    return "ok", f"Done in {span(report.seconds)}{after}."


def _figures(report: Report) -> list[tuple[str, str]]:
    expected = whole(report.estimate, "peak_bytes")
    source = text(report.estimate, "source")
    same = {True: "as a whole run, but for rounding", False: "not the same as a whole run"}
    return [
        ("peak allocated", _known(report.peak_bytes)),
        ("peak reserved", _known(report.peak_reserved_bytes)),
        ("estimate", f"{size(expected)} ({source})" if expected is not None else ""),
        ("baseline", _known(report.baseline_bytes)),
        ("held after", _known(report.after_bytes)),
        ("result", "" if report.exact is None else same[report.exact]),
        ("written to", text(mapping({"output": report.output}, "output"), "path")),
    ]


def _known(amount: int | None) -> str:
    return "" if amount is None else size(amount)


def _row(attempt: Any) -> tuple[str, ...]:
    outcome = text(attempt, "outcome")
    return (
        text(attempt, "stage"),
        text(attempt, "rung"),
        _OUTCOMES.get(outcome, outcome),
        _known(whole(attempt, "held_before_bytes")),
        _known(whole(attempt, "peak_bytes")),
    )
