"""The card that notebooks show."""

from __future__ import annotations

from tests.report.page.records import BUDGET, FAILED_PEAK, report
from tightfit.report.record import Report
from tightfit.units import format_bytes


def of(**facts: object) -> Report:
    """The report of the seed's job."""
    return Report(**{**report(), "seconds": 5.2, **facts})


def test_the_card_has_the_figures_of_the_report() -> None:
    """Peak, budget and both tries."""
    html = of()._repr_html_()
    for expected in (format_bytes(FAILED_PEAK), format_bytes(BUDGET), "tiles 512x512"):
        assert expected in html
    assert html.index("✗ out of memory") < html.index("✓ done")


def test_the_card_needs_no_script_and_asks_for_nothing() -> None:
    """Notebooks that are not trusted drop scripts and style sheets."""
    html = of()._repr_html_()
    assert not any(tag in html for tag in ("<script", "<style", "<link", "<img", "http"))


def test_names_are_escaped() -> None:
    """A model may be called anything."""
    html = of(model={"name": "<script>alert(1)</script>"}, warnings=["<b>"])._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "&lt;b&gt;" in html


def test_a_failed_job_says_so() -> None:
    """With the sentence of its error."""
    html = of(error="Not enough memory.")._repr_html_()
    assert "Not enough memory." in html
    assert "Done" not in html


def test_a_report_of_nothing_is_shown_too() -> None:
    """Whatever is unknown is left out."""
    html = Report("plan", {}, {}, {}, 0)._repr_html_()
    assert "unknown" not in html
    assert "plan" in html
