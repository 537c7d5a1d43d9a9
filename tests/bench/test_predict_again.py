"""Predicting anew, without a card, what a benchmark of predictions measured."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import predict
import predict_again
import predict_run
import pytest
from predict_cases import MINI
from rows import Row, read

from tightfit.plan.slack import Replayed
from tightfit.units import MIB
from tightfit.weigh.workspace import CUDA

JOB = "predict wan2.1-t2v-1.3b-mini/transformer denoise *"


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a run of the benchmark kept, and its rows in ``predict.json``."""

    def run(command: list[str], **more: object) -> subprocess.CompletedProcess[str]:
        del more
        return subprocess.CompletedProcess(command, predict.main(command[2:]))

    folder = tmp_path_factory.mktemp("kept")
    arguments = ["--cpu", "--only", JOB, "--commit", "89abcde", "--keep", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict.subprocess, "run", run)
        patch.setattr(predict_run, "_RUNS", 1)
        assert predict.main([*arguments, "-o", str(folder / "predict.json")]) == 0
    return folder


def figures(rows: list[Row]) -> list[tuple[object, ...]]:
    return [
        (
            row.job,
            row.who,
            row.predicted_bytes,
            row.predicted_reserved_bytes,
            row.peak_reserved_bytes,
        )
        for row in rows
    ]


def test_under_the_same_rules_the_same_is_predicted(
    rehearsed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the byte, under every allocator, with a history and without; nothing is run for it."""
    path = rehearsed / "predict.json"
    rows = read(path)[0]
    assert len(rows) == 2 * 3
    arguments = [str(rehearsed), "--measured", str(path), "--cpu"]
    assert predict_again.main(arguments) == 0
    assert "tightfit: allocated within 3% in 3 of 3" in capsys.readouterr().out
    cases, table = MINI, replace(CUDA, fixed=0)
    found = list(predict_again.again(rows, rehearsed, cases=cases, table=table))
    assert figures(found) == figures(rows)
    assert predict_again.main([*arguments, "--only", "nothing"]) == 1


def test_another_rule_predicts_something_else(
    rehearsed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what was measured nothing changes."""
    rows = read(rehearsed / "predict.json")[0]
    true = predict_run.replay

    def replay(*given: Any, **more: Any) -> Replayed:
        done: Replayed = true(*given, **more)
        return replace(done, reserved=done.reserved + MIB)

    monkeypatch.setattr(predict_run, "replay", replay)
    cases, table = MINI, replace(CUDA, fixed=0)
    found = list(predict_again.again(rows, rehearsed, cases=cases, table=table))
    for before, after in zip(rows, found, strict=True):
        assert after.predicted_reserved_bytes == (before.predicted_reserved_bytes or 0) + MIB
        assert after.peak_reserved_bytes == before.peak_reserved_bytes
