"""The benchmark of predictions: its cases, its arithmetic, and its steps without a GPU."""

from __future__ import annotations

import argparse
import json
import subprocess
from contextlib import nullcontext
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import held_card
import predict
import predict_run
import pytest
import torch
from held_card import reside
from predict_bars import (
    CALIBRATED,
    RANDOM,
    UNCALIBRATED,
    allocated_holds,
    off,
    reserved_holds,
    summary,
    table,
)
from predict_cases import EVERY, FULL, MINI, Case, Target
from predict_run import Bench, measured, predicted
from rows import Row, read, write

from tightfit.adapters import cast_sizes, find_parts, load_part, stages_of
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.plan.size import Size
from tightfit.units import MIB
from tightfit.weigh import Kind, weight_bytes, weights
from tightfit.weigh.calibration import Calibration, Calibrations, Seen
from tightfit.weigh.dry import dry_run
from tightfit.weigh.workspace import NONE, Workspaces

TABLE = Workspaces(table=True)
DECODE = Case("flux-vae-mini", "decode", Size(64, 64), (Target(Size(128, 128), EVERY),), "fp32")
ENCODE = replace(DECODE, stage="encode")
DENOISE = Case(
    "wan2.1-t2v-1.3b-mini/transformer",
    "denoise",
    Size(64, 64, frames=5),
    (Target(Size(128, 128, frames=5)),),
    "fp32",
)


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job is run once here."""
    monkeypatch.setattr(predict_run, "_RUNS", 1)


def a_card(spec: str = "virtual:8GiB,allocator=native") -> VirtualCard:
    """Its convolutions need a tenth more than the table knows."""
    card = open_card(spec)
    assert isinstance(card, VirtualCard)
    card.faults.workspace = lambda operator, given: (
        given * 22 // 10 if "convolution" in operator else 0
    )
    return card


def a_bench(card: VirtualCard, *cases: Case, **more: object) -> Bench:
    return Bench(card, cases, Calibrations(), table=TABLE, **more)  # type: ignore[arg-type]


def a_row(who: str = CALIBRATED, **figures: Any) -> Row:
    return Row("predict x decode 1x1 bf16 native", who, **figures)


class TestCases:
    """What is to be measured."""

    def test_there_are_enough_of_them(self) -> None:
        """At least 24, under three allocators on some."""
        jobs = {name: [job for case in FULL for job, _ in case.under(name)] for name in EVERY}
        assert len(jobs["native"]) >= 24
        assert all(len(jobs[name]) >= 8 for name in EVERY)

    @pytest.mark.parametrize("cases", [FULL, MINI], ids=["full", "mini"])
    def test_no_name_of_a_job_begins_with_another(self, cases: tuple[Case, ...]) -> None:
        """And none appears twice."""
        jobs = [job for case in cases for name in EVERY for job, _ in case.under(name)]
        assert len(set(jobs)) == len(jobs)
        assert not any(one.startswith(two) for one, two in permutations(jobs, 2))

    def test_seven_vaes_go_both_ways_and_six_denoisers_run(self) -> None:
        """As the issue lists them."""
        vaes = ["flux", "flux.2", "sdxl", "wan2.1", "qwen-image", "hunyuan-video", "ltx-video"]
        denoisers = ["flux.1-dev", "flux.2-dev", "wan2.1-t2v-1.3b", "wan2.1-t2v-14b", "qwen-image"]
        run = {(case.network, case.stage) for case in FULL}
        assert {(f"{vae}-vae", way) for vae in vaes for way in ("encode", "decode")} <= run
        assert {(f"{name}/transformer", "denoise") for name in denoisers} <= run
        assert ("sdxl/unet", "denoise") in run

    @pytest.mark.parametrize(
        "case", [*FULL, *MINI], ids=lambda case: f"{case.network} {case.stage}"
    )
    def test_what_is_learnt_on_is_a_quarter_of_what_is_predicted_or_less(self, case: Case) -> None:
        """In the pixels of a frame too, and every size is one that the network takes as it is."""
        (part,) = find_parts(f"random:{case.network}")
        assert case.stage in stages_of(part)
        assert cast_sizes(part, case.small) == case.small
        for target in case.targets:
            assert cast_sizes(part, target.size) == target.size
            assert 4 * case.small.samples <= target.size.samples
            assert 4 * case.small.area <= target.size.area


class TestBars:
    """What counts as right."""

    @pytest.mark.parametrize(
        ("who", "error", "holds"),
        [
            (CALIBRATED, 0.029, True),
            (CALIBRATED, -0.029, True),
            (CALIBRATED, 0.031, False),
            (UNCALIBRATED, 0.031, True),
            (UNCALIBRATED, -0.151, False),
        ],
    )
    def test_allocated(self, who: str, error: float, *, holds: bool) -> None:
        """Three per cent after one small run, fifteen with none."""
        row = a_row(who, predicted_bytes=round(10**6 * (1 + error)), peak_allocated_bytes=10**6)
        assert allocated_holds(row) is holds

    @pytest.mark.parametrize(
        ("error", "holds"), [(0.079, True), (0.081, False), (-0.019, True), (-0.021, False)]
    )
    def test_reserved(self, error: float, *, holds: bool) -> None:
        """Eight per cent above, and two below."""
        figures = {"predicted_reserved_bytes": round(10**6 * (1 + error))}
        assert reserved_holds(a_row(peak_reserved_bytes=10**6, **figures)) is holds

    def test_what_is_not_known_is_neither_right_nor_wrong(self) -> None:
        """A job that failed has no error, and counts in no sum."""
        row = a_row(predicted_bytes=10**6, predicted_reserved_bytes=10**6)
        assert allocated_holds(row) is None
        assert reserved_holds(row) is None
        assert "0 of 0" in summary([row])
        assert "1 not measured" in summary([row])

    def test_what_was_held_before_can_be_left_out(self) -> None:
        """Twenty GiB of weights make every error small."""
        assert off(110, 105, 100) == pytest.approx(1.0)
        assert off(110, 105) == pytest.approx(5 / 105)
        assert off(110, 100, 100) is None

    def test_the_table_marks_what_does_not_hold(self) -> None:
        """Both figures of each job, and the sum below."""
        good = {"predicted_bytes": 100 * MIB, "peak_allocated_bytes": 101 * MIB}
        bad = {"predicted_reserved_bytes": 100 * MIB, "peak_reserved_bytes": 110 * MIB}
        rows = [a_row(**good, **bad, note=f"{RANDOM}; learnt")]
        assert "| 100 / 101 | -1.0% |" in table(rows)
        assert "| 100 / 110 | **-9.1%** |" in table(rows)
        assert "| learnt |" in table(rows)
        assert "allocated within 3% in 1 of 1" in summary(rows)
        assert "in 0 of 1" in summary(rows)


class TestPredicting:
    """From a dry run to two figures."""

    def test_what_is_held_counts_and_a_calibration_adds(self) -> None:
        """To allocated and to reserved alike."""
        run = dry_run(lambda: torch.empty(MIB, dtype=torch.uint8, device="meta"))
        bare = predicted(run, "exact", held=[0, 5 * MIB], workspaces=NONE)
        assert (bare.allocated, bare.reserved) == (6 * MIB, 6 * MIB)
        known = Calibration().with_run(Seen(1, predicted=100, measured=150))
        more = predicted(run, "exact", held=[5 * MIB], workspaces=NONE, calibration=known)
        assert (more.allocated, more.reserved) == (6 * MIB + MIB // 2, 6 * MIB + MIB // 2)


class TestResident:
    """A network that was never on the host."""

    def test_weights_lie_on_the_card_and_tables_hold_what_the_network_put_there(self) -> None:
        """As the network's own loader leaves them: rotary tables are stored nowhere."""
        (part,) = find_parts(f"random:{DENOISE.network}")
        card = a_card("virtual:1GiB")
        network = reside(part, card, dtype=torch.float32)
        loaded = load_part(part, dtype=torch.float32)
        known = {held.path: held for held in weights(loaded)}
        for held in weights(network.module):
            assert held.tensor.device == card.device
            assert held.tensor.shape == known[held.path].tensor.shape
            if held.kind is Kind.BUFFER:
                assert torch.equal(held.tensor.cpu(), known[held.path].tensor)
        assert sum(network.sizes) == weight_bytes(loaded)
        assert card.read().allocated == sum(-(-size // 512) * 512 for size in network.sizes)
        assert torch.isfinite(network.call("denoise", DENOISE.small)()[0].cpu()).all()

    def test_building_leaves_modules_as_they_were(self) -> None:
        """Also when it fails."""
        plain = torch.nn.Module.register_parameter
        with held_card._parameters_on_meta():
            assert torch.nn.Linear(4, 4).weight.device.type == "meta"
        with pytest.raises(RuntimeError), held_card._parameters_on_meta():
            torch.nn.Linear(-1, 4)
        assert torch.nn.Module.register_parameter is plain
        assert torch.nn.Linear(4, 4).weight.device.type == "cpu"


class TestRunning:
    """Every step on a virtual card."""

    @pytest.mark.parametrize("case", [DECODE, ENCODE, DENOISE], ids=lambda case: case.stage)
    def test_four_times_the_pixels_are_predicted_within_the_bar(self, case: Case) -> None:
        """Two rows of one job, and the card is empty afterwards."""
        card = a_card()
        rows = list(a_bench(card, case).rows())
        assert [row.who for row in rows] == [CALIBRATED, UNCALIBRATED]
        assert all(row.completed and allocated_holds(row) for row in rows), table(rows)
        assert rows[0].peak_allocated_bytes == rows[1].peak_allocated_bytes
        assert "random weights" in rows[0].note
        assert card.read().allocated == 0
        card.check()

    def test_where_there_is_no_history_the_factor_alone_is_learnt(self) -> None:
        """As under cudaMallocAsync."""
        card = a_card("virtual:8GiB,allocator=async")
        card.moves = nullcontext  # type: ignore[method-assign]
        bench = a_bench(card, DECODE)
        informed, _ = bench.rows()
        assert allocated_holds(informed)
        assert "no history" in informed.note
        assert not bench.moves

    def test_a_job_that_fails_is_a_row_with_a_note_and_not_the_end(self) -> None:
        """The next one runs, and nothing of the failed one stays."""
        large = replace(DECODE, targets=(Target(Size(1024, 1024)), Target(Size(128, 128))))
        card = a_card("virtual:64MiB,allocator=native")
        bad, _, good, _ = a_bench(card, large).rows()
        assert not bad.completed
        assert "OutOfMemoryError" in bad.note
        assert bad.predicted_bytes is not None
        assert bad.peak_allocated_bytes is None
        assert good.completed
        assert allocated_holds(good)
        assert card.read().allocated == 0

    def test_a_network_that_does_not_get_on_the_card_is_two_rows_with_a_note(self) -> None:
        """And the next network is tried."""
        card = a_card("virtual:8MiB,allocator=native")
        rows = list(a_bench(card, DENOISE, DECODE).rows())
        assert [row.completed for row in rows[:2]] == [False, False]
        assert all("did not get on the card" in row.note for row in rows[:2])
        assert len(rows) == 4
        assert card.read().allocated == 0

    def test_a_small_run_that_fails_leaves_the_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The job is predicted without it, and measured."""

        def fails(*given: object) -> None:
            raise RuntimeError("planted\nand more")

        monkeypatch.setattr(predict_run, "watch", fails)
        informed, plain = a_bench(a_card(), DECODE).rows()
        assert informed.predicted_bytes is None
        assert "calibrating failed: RuntimeError: planted" in informed.note
        assert allocated_holds(plain)

    def test_no_job_starts_after_the_deadline(self) -> None:
        """Its name is kept, for whoever reads what came."""
        bench = a_bench(a_card(), DECODE, deadline=0.0)
        assert not list(bench.rows())
        assert bench.late == [DECODE.job(Size(128, 128), "native")]

    def test_a_pattern_leaves_out_other_jobs(self) -> None:
        """Networks that have none of it are not even built."""
        bench = a_bench(a_card(), DENOISE, DECODE, only="* decode *")
        assert {row.job for row in bench.rows()} == {DECODE.job(Size(128, 128), "native")}

    def test_the_largest_peak_of_several_runs_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And the note says that they differed."""
        monkeypatch.setattr(predict_run, "_RUNS", 3)
        card = a_card()
        sizes = iter((30 * MIB, 50 * MIB, 40 * MIB))
        row = measured(
            a_row(),
            card,
            lambda: torch.empty(next(sizes), dtype=torch.uint8, device=card.device),
        )
        assert row.peak_allocated_bytes == row.peak_reserved_bytes == 50 * MIB
        assert row.note == "reserved 30, 50, 40 MiB in turn"
        assert len(row.all_seconds) == 3


class TestMerging:
    """Files of earlier runs."""

    def test_a_partial_run_leaves_other_rows_and_marks_them(self, tmp_path: Path) -> None:
        """With the commit that they are of; what was run anew is replaced."""
        path = tmp_path / "predict.json"
        old = [replace(a_row(), job="predict a"), replace(a_row(), job="predict b", note="old")]
        write(path, old, machine={}, versions={"commit": "1234567"})
        options = argparse.Namespace(only="predict b", allocators=EVERY)
        fresh = [replace(a_row(), job="predict b", note="new")]
        (kept,) = predict._others(path, fresh, options, {"commit": "89abcde"})
        assert kept.job == "predict a"
        assert "commit 1234567" in kept.note
        whole = argparse.Namespace(only="*", allocators=EVERY)
        assert not predict._others(path, fresh, whole, {})

    def test_one_command_runs_it_all(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """A results file, a table, and what was watched; an old calibration does not help.

        Its processes are run in this one here, by the same command lines.
        """
        asked = []

        def run(command: list[str], **more: dict[str, str]) -> subprocess.CompletedProcess[str]:
            asked.append(more["env"]["PYTORCH_CUDA_ALLOC_CONF"])
            return subprocess.CompletedProcess(command, predict.main(command[2:]))

        monkeypatch.setattr(predict.subprocess, "run", run)
        output, keep = tmp_path / "predict.json", tmp_path / "kept"
        keep.mkdir()
        stale = {"version": 1, "entries": {"stale": {"seen": [], "shares": {}}}}
        (keep / "calibrations-native.json").write_text(json.dumps(stale), encoding="utf-8")
        arguments = ["--cpu", "--allocators", "native,async", "--only", "* *-1.3b-mini/* *"]
        arguments += ["--commit", "89abcde", "--keep", str(keep), "-o", str(output)]
        assert predict.main(arguments) == 0
        assert asked == ["backend:native", "backend:cudaMallocAsync"]
        rows, machine, versions = read(output)
        assert [row.who for row in rows] == [CALIBRATED, UNCALIBRATED] * 2
        assert [row.job.split()[-1] for row in rows] == ["native"] * 2 + ["async"] * 2
        assert all(row.completed and allocated_holds(row) for row in rows)
        assert machine["card"].startswith("virtual:")
        assert versions["commit"] == "89abcde"
        assert "tightfit: allocated within 3% in 2 of 2" in capsys.readouterr().out
        learnt = json.loads((keep / "calibrations-native.json").read_text(encoding="utf-8"))
        assert "stale" not in learnt["entries"]
        assert json.loads((keep / "moves-native.json").read_text(encoding="utf-8"))
        left = {"calibrations-native.json", "calibrations-async.json", "moves-native.json"}
        assert {path.name for path in keep.iterdir()} == left
