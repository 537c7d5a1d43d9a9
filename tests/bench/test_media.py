"""The benchmark of files, rehearsed without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from rows import read

import media
from tightfit.testing import toy_vae


def test_a_rehearsal_measures_files_against_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In and out, with what each takes alone, and parts of a clip with a short and a long tail."""
    monkeypatch.setattr(media, "find_vae", lambda spec: spec)
    monkeypatch.setattr(media, "load_vae", lambda *_, **__: toy_vae("V3", width=4))
    monkeypatch.setattr(media, "REHEARSED", ["5x64x48"])
    monkeypatch.setattr(media, "LONG", 40)
    monkeypatch.setattr(media, "SHORT", 16)
    monkeypatch.setattr(media, "ASKED", "4:9:2")
    output = tmp_path / "media.json"
    media.main(["--cpu", "-o", str(output)])
    rows, machine, versions = read(output)
    assert machine["card"] == "cpu"
    assert {"torch", "av"} <= set(versions)
    beside = {row.job.split()[0]: [] for row in rows}
    for row in rows:
        beside[row.job.split()[0]].append(row.who)
        assert row.seconds is not None
        assert row.seconds > 0
        assert len(row.all_seconds) == (2 if "clips" in row.job else 3)
    assert [row.bit_equal for row in rows if row.who == "from the file"] == [True]
    assert beside == {
        "encode": [
            "from memory",
            "from the file",
            "reading alone",
            "from memory, each saved",
            "per item of a batch of 8",
        ],
        "decode": ["to memory", "to a file", "writing alone"],
        "read": ["of 16", "of 40"],
    }
    assert "of the first" in capsys.readouterr().out


def test_only_what_is_asked_for_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Minutes of a card are few."""
    monkeypatch.setattr(media, "find_vae", lambda spec: spec)
    monkeypatch.setattr(media, "load_vae", lambda *_, **__: toy_vae("V3", width=4))
    monkeypatch.setattr(media, "REHEARSED", ["5x32x32"])
    media.main(["--cpu", "--only", "encode"])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3
    assert all(line.startswith("encode 5x32x32") for line in said)
