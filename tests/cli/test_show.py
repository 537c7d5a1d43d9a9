"""The one line of information about how something was coded."""

from __future__ import annotations

from typing import Any

import pytest

from tightfit.cli.options import Voice
from tightfit.cli.show import tell
from tightfit.report.record import Report

VOICE = Voice(verbose=False, quiet=False, report=None, trace=None)
WHOLE = {"rung": "whole", "outcome": "ok", "reason": None}
OOM = {"rung": "whole", "outcome": "oom", "reason": None}
SKIPPED = {"rung": "whole", "outcome": "skipped", "reason": "it needs 9.0 GiB"}
STRIPS = {"rung": "strips", "outcome": "ok", "reason": None}


def told(capsys: pytest.CaptureFixture[str], *attempts: dict[str, Any]) -> list[str]:
    """What is said of a job with these attempts."""
    report = Report(
        "decode",
        input={},
        model={},
        card={"kind": "virtual"},
        budget_bytes=1,
        attempts=[{"stage": "decode", **each} for each in attempts],
    )
    tell(VOICE, report)
    return capsys.readouterr().err.splitlines()


def test_what_was_done_as_it_should_be_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """However many things were."""
    assert told(capsys, WHOLE) == told(capsys, WHOLE, WHOLE, WHOLE) == []


def test_what_was_done_in_another_way_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With the reason, also where several things were coded so, and others were not."""
    assert told(capsys, OOM, STRIPS) == [
        "info: decoded in strips, complete; whole ran out of memory."
    ]
    line = "info: decoded in strips, complete; whole did not fit (it needs 9.0 GiB)."
    assert told(capsys, WHOLE, SKIPPED, STRIPS, SKIPPED, STRIPS, WHOLE) == [line]
