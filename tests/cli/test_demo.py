"""`tightfit demo`: the job that must not die, small enough for a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.clips import write_clip
from tightfit.cli import run
from tightfit.cli.demo import _shipped_clip
from tightfit.media.info import probe


def test_the_demo_shows_the_failed_peak_and_ends_with_a_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps, chart, latent on disk, film, reports; the card is empty at the end."""
    monkeypatch.chdir(tmp_path)
    clip = write_clip(tmp_path / "mine.mp4", 5, 160, 128)
    assert run(["demo", "--input", str(clip), "-o", "results"]) == 0
    printed = capsys.readouterr().out
    assert "out of memory" in printed
    assert "budget" in printed
    assert "█" in printed
    assert "░" in printed
    assert "the card holds 0 B now" in printed
    results = tmp_path / "results"
    assert (probe(results / "clip.mp4").width, probe(results / "clip.mp4").frames) == (160, 5)
    report = json.loads((results / "encode.json").read_text())
    assert [a["outcome"] for a in report["attempts"]] == ["oom", "ok"]
    assert report["attempts"][1]["held_before_bytes"] == report["baseline_bytes"]


def test_the_demo_s_clip_is_found_without_importing_its_package() -> None:
    """It lies in a wheel that the `[demo]` extra installs."""
    assert probe(_shipped_clip()).width == 1280


def test_a_small_input_is_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One tile would be the whole: there is nothing to show."""
    clip = write_clip(tmp_path / "tiny.mp4", 1, 64, 64)
    assert run(["demo", "--input", str(clip), "-o", str(tmp_path / "out")]) == 2
    assert "--input" in capsys.readouterr().err


def test_a_demo_that_cannot_begin_leaves_no_folder(tmp_path: Path) -> None:
    """The folder for results was made for nothing, and goes again."""
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"no film")
    assert run(["demo", "--input", str(clip), "-o", str(tmp_path / "results")]) == 2
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["clip.mp4"]
