"""What real runs teach, and the file that keeps it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tightfit.weigh.calibration import Calibration, Calibrations, Key, Seen

KEY = Key("flux-vae", "decode", "bfloat16", "a card", "2.13", "9.1")


def test_one_real_run_corrects_by_its_factor() -> None:
    """And says that it is one run."""
    known = Calibration().with_run(Seen(100, predicted=1000, measured=1250))
    assert known.corrected(4000) == 5000
    assert not known.calibrated
    assert known.source == "one real run"


def test_it_is_calibrated_only_once_a_second_size_agrees() -> None:
    """Within three per cent; a second run of the same size teaches nothing new."""
    one = Calibration().with_run(Seen(100, 1000, 1250))
    assert not one.with_run(Seen(100, 1000, 1250)).calibrated
    assert one.with_run(Seen(400, 4000, 5040)).calibrated
    assert not one.with_run(Seen(400, 4000, 6000)).calibrated


def test_the_nearest_size_tells() -> None:
    """A small run with much fixed cost does not spoil the large ones."""
    known = Calibration().with_run(Seen(1, 1000, 3000)).with_run(Seen(100, 100_000, 110_000))
    assert known.corrected(90_000) == 99_000


def test_nothing_learnt_changes_nothing() -> None:
    """An empty calibration is the prediction."""
    assert Calibration().corrected(12345) == 12345


def test_an_absurd_measurement_is_bounded() -> None:
    """A factor of a thousand is not believed."""
    known = Calibration().with_run(Seen(1, 1, 10**9))
    assert known.corrected(100) == 1600


def test_a_file_keeps_it_for_the_next_process(tmp_path: Path) -> None:
    """Under its key, and no other."""
    path = tmp_path / "deep" / "calibrations.json"
    known = Calibration(shares={"convolution 8x4x3x3": 1.5}).with_run(Seen(100, 1000, 1250))
    Calibrations(path).keep(KEY, known)
    assert Calibrations(path).of(KEY) == known
    assert Calibrations(path).of(Key("flux-vae", "encode", "bfloat16", "a card", "2.13")) == (
        Calibration()
    )


def test_two_processes_do_not_forget_one_another(tmp_path: Path) -> None:
    """What another wrote meanwhile stays."""
    path = tmp_path / "calibrations.json"
    one, two = Calibrations(path), Calibrations(path)
    other = Key("wan2.1-vae", "decode", "float16", "a card", "2.13")
    one.keep(KEY, Calibration().with_run(Seen(1, 2, 3)))
    two.keep(other, Calibration().with_run(Seen(4, 5, 6)))
    assert one.of(other).seen == (Seen(4, 5, 6),)
    assert two.of(KEY).seen == (Seen(1, 2, 3),)


def test_without_a_file_it_is_kept_for_as_long_as_the_object() -> None:
    """And no longer."""
    memory = Calibrations()
    memory.keep(KEY, Calibration().with_run(Seen(1, 2, 3)))
    assert memory.of(KEY).seen == (Seen(1, 2, 3),)
    assert Calibrations().of(KEY).seen == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 99, "entries": {}}',
        '{"version": 1, "entries": 3}',
        json.dumps({"version": 1, "entries": {str(KEY): {"seen": [[1, 0, -1]], "shares": {}}}}),
        json.dumps({"version": 1, "entries": {str(KEY): {"seen": "x"}}}),
    ],
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    """It is read as empty, and written over."""
    path = tmp_path / "calibrations.json"
    path.write_text(text, encoding="utf-8")
    assert Calibrations(path).of(KEY) == Calibration()
    Calibrations(path).keep(KEY, Calibration().with_run(Seen(1, 2, 3)))
    assert Calibrations(path).of(KEY).seen == (Seen(1, 2, 3),)
