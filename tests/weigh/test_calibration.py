"""What real runs teach, and the file that keeps it."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_two_sizes_tell_fixed_from_growing() -> None:
    """A small run with much fixed cost spoils no other: the line through both is its own."""
    known = Calibration()
    for samples, predicted in ((1, 1000), (100, 100_000)):
        known = known.with_run(Seen(samples, predicted, 2000 + int(1.1 * predicted)))
    for predicted in (1000, 2000, 50_000, 90_000, 1_600_000):
        assert known.corrected(predicted) == pytest.approx(2000 + 1.1 * predicted, abs=1)


def test_two_sizes_that_are_all_but_one_draw_no_line() -> None:
    """What runs of one size differ by is chance: a line through it could go anywhere."""
    known = Calibration().with_run(Seen(100, 1000, 1250)).with_run(Seen(101, 1010, 1350))
    assert known.corrected(100_000) < 150_000


@given(
    st.lists(
        st.tuples(st.integers(1, 10**12), st.integers(1, 10**13)).map(
            lambda pair: Seen(pair[0], pair[0], pair[1])
        ),
        max_size=8,
    ),
    st.integers(1, 10**12),
    st.integers(1, 10**12),
)
def test_what_is_predicted_larger_is_never_corrected_to_less(
    runs: list[Seen], one: int, other: int
) -> None:
    """Whatever was measured: else a larger tile would pass where a smaller one does not."""
    known = Calibration()
    for run in runs:
        known = known.with_run(run)
    small, large = sorted((one, other))
    assert 0 <= known.corrected(small) <= known.corrected(large)
    assert known.corrected(large) <= 16 * large + 1
    assert known.corrected(large) >= large // 2 - 1


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


@pytest.mark.parametrize("in_a_file", [True, False])
def test_runs_are_added_to_what_others_added_meanwhile(tmp_path: Path, in_a_file: bool) -> None:
    """Two jobs that began with the same knowledge: both runs count."""
    known = Calibrations(tmp_path / "calibrations.json" if in_a_file else None)
    known.keep(KEY, Calibration(shares={"convolution 4": 0.5}).with_run(Seen(1, 10, 11)))
    for run in (Seen(2, 20, 22), Seen(3, 30, 33)):
        known.add(KEY, [run], shares={"convolution 4": 0.5})
    assert [run.samples for run in known.of(KEY).seen] == [1, 2, 3]


def test_runs_that_were_predicted_without_what_was_watched_do_not_count() -> None:
    """Their prediction is not that of today."""
    known = Calibrations()
    known.keep(KEY, Calibration().with_shares({"convolution 4": 0.5}))
    known.add(KEY, [Seen(1, 10, 15)], shares={})
    assert known.of(KEY) == Calibration(shares={"convolution 4": 0.5})


@pytest.mark.parametrize("in_a_file", [True, False])
def test_threads_that_keep_at_once_lose_nothing(tmp_path: Path, in_a_file: bool) -> None:
    """Eight jobs end together: the file is whole, and has all that they measured."""
    path = tmp_path / "calibrations.json"
    memory = Calibrations()
    start = threading.Barrier(8)

    def job(at: int) -> None:
        known = Calibrations(path) if in_a_file else memory
        start.wait()
        for turn in range(6):
            key = Key(f"model {at} {turn}", "decode", "bfloat16", "a card", "2.13")
            known.keep(key, Calibration().with_run(Seen(1, 2, 3)))

    threads = [threading.Thread(target=job, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = Calibrations(path) if in_a_file else memory
    for at in range(8):
        for turn in range(6):
            key = Key(f"model {at} {turn}", "decode", "bfloat16", "a card", "2.13")
            assert known.of(key).seen == (Seen(1, 2, 3),)
    assert [file.name for file in tmp_path.iterdir()] == (["calibrations.json"] * in_a_file)


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
        *(
            json.dumps(
                {"version": 1, "entries": {str(KEY): {"seen": [[1, 2, 3]], "shares": shares}}}
            )
            for shares in ({"a": math.nan}, {"a": math.inf}, {"a": -0.5}, {"a": "x"}, [1])
        ),
        json.dumps(
            {"version": 1, "entries": {str(KEY): {"seen": [[math.inf, 2, 3]], "shares": {}}}}
        ),
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    """It is read as empty, and written over."""
    path = tmp_path / "calibrations.json"
    path.write_text(text, encoding="utf-8")
    assert Calibrations(path).of(KEY) == Calibration()
    Calibrations(path).keep(KEY, Calibration().with_run(Seen(1, 2, 3)))
    assert Calibrations(path).of(KEY).seen == (Seen(1, 2, 3),)
