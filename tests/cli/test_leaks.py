"""`tightfit leaks`: leaks of a trace on the screen, as JSON, and in the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from tightfit.cli.leaks import leaks
from tightfit.errors import InputError
from tightfit.units import MIB
from tightfit.watch import Recorder
from tightfit.watch.leaks import Found, Hold, Leak

SMALL = Leak(MIB, (4,), "float32", "cuda:0", Hold.VIEW, ("module app", "kept[0]"))
LARGE = Leak(8 * MIB, None, None, "cuda:0", Hold.CYCLE, ("cycle Node (peer is itself)",), "a.py:3")


def trace_of(folder: Path, *found: Leak) -> Path:
    """A trace with these leaks in it."""
    recorder, path = Recorder(), folder / "trace.jsonl"
    recorder.event("stage", stage="decode")
    Found(found, {}, {}).tell(recorder)
    recorder.write(path)
    return path


def test_leaks_are_told_the_largest_first_with_advice_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes, what holds them, the chain, the site."""
    with pytest.raises(typer.Exit) as ended:
        leaks(trace_of(tmp_path, SMALL, LARGE))
    assert ended.value.exit_code == 1
    head, first, second, *advice = capsys.readouterr().out.splitlines()
    assert head == "9.0 MiB stayed in 2 storages:"
    assert first == f"- {LARGE.line()}"
    assert second == f"- {SMALL.line()}"
    assert [line.partition(":")[0] for line in advice] == ["cycle", "view"]


def test_json_is_alone_and_reads_as_leaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost on the way."""
    with pytest.raises(typer.Exit):
        leaks(trace_of(tmp_path, LARGE, SMALL), as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [Leak.of_event(each) for each in told["leaks"]] == [LARGE, SMALL]


def test_a_trace_without_leaks_is_a_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says so."""
    leaks(trace_of(tmp_path))
    assert capsys.readouterr().out == "No leaks are in it.\n"


def test_a_leak_that_cannot_be_read_is_refused_with_the_file(tmp_path: Path) -> None:
    """Rather than shown in part."""
    recorder, path = Recorder(), tmp_path / "trace.jsonl"
    recorder.event("leak", bytes=3)
    recorder.write(path)
    with pytest.raises(InputError, match=r"trace\.jsonl has a leak that cannot be read"):
        leaks(path)
