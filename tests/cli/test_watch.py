"""`tightfit watch`, with commands that do what a job would."""

from __future__ import annotations

import sys

import pytest

from tightfit.cli import run

CHILD = """
import json, os, sys
with open(os.environ["TIGHTFIT_EVENTS"], "a") as file:
    for event in (
        {"event": "plan", "name": "Net", "budget_bytes": 8 << 20, "ledger": {"ring": 1 << 20}},
        {"event": "memory", "allocated_bytes": 5 << 20, "reserved_bytes": 6 << 20},
        {"event": "rests", "network": "Net", "bytes": 3 << 20},
        {"event": "something new"},
    ):
        file.write(json.dumps({"t": 0.0, **event}) + "\\n")
    file.write('{"t": 0.0, "event": "mem')
print("said", " ".join(sys.argv[1:]))
print("complained", file=sys.stderr)
sys.exit(7)
"""


def test_it_shows_the_ledger_and_ends_as_the_command_does(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What the command prints, the figures, and its exit code; its options are its own."""
    code = run(["watch", sys.executable, "-c", CHILD, "--card", "x", "--help"])
    shown = capfd.readouterr().err
    assert code == 7
    assert "said --card x --help" in shown
    assert "complained" in shown
    assert "5.0 MiB" in shown
    assert "8.0 MiB" in shown
    assert "Net rests: 3.0 MiB came free" in shown


def test_a_command_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and its name."""
    assert run(["watch", "no-such-command"]) == 2
    assert "no-such-command" in capsys.readouterr().err
