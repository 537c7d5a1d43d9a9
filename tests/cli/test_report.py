"""`tightfit report` and `tightfit rerun` as users run them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_commands import ONE_TILE, WAN, files
from tests.clips import write_clip
from tests.report.made import placed
from tightfit.cli import run
from tightfit.report.trace_file import read_trace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that went down a rung, with its trace, and one that memory ended, with its log."""
    path = tmp_path_factory.mktemp("traced")
    clip = write_clip(path / "clip.mp4", 5, 64, 64)
    done = ["--card", ONE_TILE.replace("12", "6"), "--no-estimate", "--tile", "64", "-q"]
    encode = ["encode", str(clip), "--vae", WAN]
    run([*encode, "-o", str(path / "z.safetensors"), *done, "--trace", str(path / "t.jsonl")])
    card = ["--card", "virtual:4MiB,allocator=native", "--no-estimate", "-q"]
    code = run(
        [*encode, "-o", str(path / "y.safetensors"), *card, "--trace", str(path / "y.jsonl")]
    )
    assert code == 3
    return path


@pytest.fixture
def log(folder: Path) -> Path:
    return folder / "y.safetensors.oom.json"


def test_a_screenful_says_what_happened(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The card, versions, memory over time, and each try."""
    assert run(["report", str(folder / "t.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "virtual:6MiB (exact)" in said
    assert "torch 2." in said
    assert "budget" in said
    assert "Tries:" in said


def test_the_log_of_a_job_that_memory_ended_opens(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command as it was typed, and the sentence that it ended with."""
    assert run(["report", str(log)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Log of a job that memory ended on virtual:4MiB,allocator=native")
    assert "Command: tightfit encode" in said
    assert "Not enough memory to" in said
    trace = read_trace(log)
    assert trace.is_oom
    assert 0 < len(trace.events) <= 1000
    assert trace.header["attempts"]
    assert trace.header["versions"]["torch"]


def test_every_format_at_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file is whole; its name is said."""
    wanted = {"--snapshot": "s.pickle", "--timeline": "t.json", "--csv": "e.csv"}
    arguments = [part for option, name in wanted.items() for part in (option, str(tmp_path / name))]
    assert run(["report", str(folder / "t.jsonl"), *arguments]) == 0
    assert files(tmp_path) == set(wanted.values())
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in wanted.values()]
    snapshot = pickle.loads((tmp_path / "s.pickle").read_bytes())
    assert snapshot["device_traces"][0]
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    lines = (tmp_path / "e.csv").read_text().splitlines()
    assert len(lines) == 1 + len(read_trace(folder / "t.jsonl").events)


def test_json_is_alone_on_stdout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The header, the events, the table."""
    assert run(["report", str(folder / "t.jsonl"), "--json"]) == 0
    everything = json.loads(capsys.readouterr().out)
    assert everything["header"]["tightfit_trace"] == 2
    assert {"events", "modules", "peak_allocated_bytes"} <= set(everything)


def test_modules_is_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each block, and the slack."""
    path = tmp_path / "t.jsonl"
    lines: list[Any] = [{"tightfit_trace": 2}, {"t": 0.0, **placed(0, 40, 64, 40)}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(["report", str(path), "--modules"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("[0] reserved 64.0 MiB (+64.0 MiB), allocated 40.0 MiB")
    assert last.startswith("slack: 24.0 MiB")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["t.jsonl", "--csv", "t.jsonl"], "what is read and --csv"),
        (["t.jsonl", "--csv", "e.csv", "--timeline", "e.csv"], "--timeline and --csv"),
        (["t.jsonl", "--csv", "e"], "give it a suffix"),
        (["t.jsonl", "--json", "--modules"], "drop one"),
        (["clip.mp4"], "clip.mp4"),
        (["none.jsonl"], "No such file"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str],
    sentence: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, and nothing is written."""
    monkeypatch.chdir(folder)
    before = files(folder)
    assert run(["report", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert files(folder) == before


def test_a_coarse_trace_has_nothing_for_pytorchs_viewer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused, and no file is left."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"tightfit_trace": 2}\n')
    assert run(["report", str(path), "--snapshot", str(tmp_path / "s.pickle")]) == 2
    assert "--trace" in capsys.readouterr().err
    assert files(tmp_path) == {"t.jsonl"}


@pytest.mark.parametrize(("size", "code"), [("1MiB", 3), ("64MiB", 0)])
def test_rerun_does_a_job_of_random_weights_again(
    size: str, code: int, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its log alone: the same size, the same options, another card."""
    assert run(["rerun", str(log), "--card", f"virtual:{size}", "--json"]) == code
    done = json.loads(capsys.readouterr().out)
    assert (done["way"], done["fits"]) == ("job", code == 0)
    assert done["error"] is None or "Not enough memory" in done["error"]
    assert (done["rung"] is not None) == (code == 0)


@pytest.mark.parametrize(("size", "code"), [("2MiB", 3), ("64MiB", 0)])
def test_rerun_replays_what_was_recorded(
    size: str, code: int, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the model of the card's allocator; it says how many moves, and what they need."""
    assert (
        run(["rerun", str(log), "--card", f"virtual:{size},allocator=native", "--recorded"]) == code
    )
    said = capsys.readouterr().out
    assert "recorded allocations" in said
    assert ("It fits" if code == 0 else "It does not fit") in said


def test_rerun_needs_a_virtual_card(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody's real card is filled for a question."""
    assert run(["rerun", str(log), "--card", "cpu"]) == 2
    assert "--card virtual:" in capsys.readouterr().err


def test_a_page_is_one_file(folder: Path, log: Path, tmp_path: Path) -> None:
    """Of a trace, and of a log; a file that was there is replaced."""
    out = tmp_path / "report.html"
    for source in (folder / "t.jsonl", log):
        assert run(["report", str(source), "-o", str(out)]) == 0
        assert "<html" in out.read_text(encoding="utf-8")[:200].lower()
    assert files(tmp_path) == {"report.html"}


def test_a_prompt_is_in_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline that memory ends, before or after it was loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    secret = "an otter that nobody knows of"
    given = ["generate", "random:flux.1-dev-mini", "--prompt", secret, "--steps", "1", "-q"]
    given += ["--width", "64", "--height", "64", "--card", "virtual:16MiB", "--vram", "300KiB"]
    for more in ([], ["--no-estimate"]):
        out = tmp_path / "a.png"
        assert run([*given, "-o", str(out), *more, "--trace", str(tmp_path / "t.jsonl")]) == 3
        for written in ("a.png.oom.json", "t.jsonl"):
            text = (tmp_path / written).read_text()
            assert secret not in text
        assert read_trace(tmp_path / "a.png.oom.json").header["report"]["command"] == "generate"
