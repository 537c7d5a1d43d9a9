"""The benchmark of unpacking, rehearsed without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import unpack
from rows import read

from tightfit.units import KIB


def test_a_rehearsal_measures_both_formats_against_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every size has its rows, all bits come back, and no job begins with another's name."""
    monkeypatch.setattr(unpack, "SMALL", (64 * KIB, 512 * KIB))
    output = tmp_path / "unpack.json"
    assert unpack.main(["--cpu", "-o", str(output)]) == 0
    rows, machine, _ = read(output)
    assert machine["card"] == "cpu"
    jobs = sorted({row.job for row in rows})
    assert len(jobs) == 4
    assert not any(other.startswith(job) for job in jobs for other in jobs if other != job)
    for job in jobs:
        beside = {row.who: row for row in rows if row.job == job}
        assert {"tightfit", "tightfit-11"} <= set(beside)
        assert ("copy" in beside) == job.startswith("unpack")
        assert all(row.seconds for row in beside.values())
    assert [row.bit_equal for row in rows if row.limit_seconds] == [True] * 4
    assert "of a copy's rate" in capsys.readouterr().out
