"""The benchmark of streaming: its jobs, its arithmetic, and its steps without a GPU."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import ballast
import packed
import packed_rows
import pytest
import stream
import stream_steps
import stream_trace
import torch
from ballast import Ballast
from held_card import reside
from rows import write
from safetensors.torch import save_file
from stream_eight_bits import STORED, converting, store
from stream_jobs import (
    EIGHT,
    EIGHT_MINI,
    EVERY,
    FULL,
    LEAF,
    MINI,
    MMGP,
    OURS,
    PACKED,
    PEERS,
    RESIDENT,
    Job,
    PackedBar,
    Run,
    building,
    rows_of,
    runs_of,
)
from stream_peers import MARGINS, Room, budget_of, prepare, takes_budget
from stream_rows import (
    RAW,
    StreamRow,
    beside,
    finished,
    in_order,
    least_copied,
    limit_of,
    read_rows,
    summary,
    table,
    verdicts,
)
from stream_run import Place, built, come_home, resident, row_of, shelve
from stream_steps import digest, host_seconds, inputs_of, rms, same_bits, timed
from stream_weights import Shelf, bring_home
from torch import nn

import tightfit
from tightfit.adapters import find_parts, outline_part
from tightfit.card import open_card
from tightfit.plan.size import Size
from tightfit.units import GIB, MIB
from tightfit.weigh import weight_bytes, weights

FIRST = FULL[0]
SMALL = MINI[-1]


def a_row(who: str = OURS, job: str = FIRST.name, **figures: Any) -> StreamRow:
    return StreamRow(job, who, **figures)


class TestJobs:
    """What is to be measured."""

    def test_they_are_those_of_the_table(self) -> None:
        """By the names that are looked for in the results."""
        assert [job.name for job in FULL] == [
            "flux.1-dev 1024 bf16 12GiB",
            "flux.1-dev 1024 bf16 8GiB",
            "flux.1-dev 1024 bf16 6GiB",
            "sdxl 1024 bf16 3GiB",
            "wan2.1-t2v-14b 33x480x832 bf16 12GiB",
            "flux.2-dev 1024 bf16 24GiB",
        ]
        assert FIRST.bytes == 12 * GIB
        assert set(FIRST.peers) == set(PEERS)

    def test_those_in_eight_bits_are_those_of_the_table(self) -> None:
        """At three sizes on one card; a row packed, which is ours, and none raw."""
        assert [job.name for job in EIGHT] == [
            "flux.2-dev 256 fp8 16GiB",
            "flux.2-dev 1024 fp8 16GiB",
            "flux.2-dev 2048 fp8 16GiB",
        ]
        assert {run.who for run in runs_of(EIGHT)} == {PACKED}
        assert len({job.model.network for job in EIGHT}) == 1
        assert EIGHT[0].model.network != FULL[-1].model.network

    @pytest.mark.parametrize("jobs", [EVERY, (*MINI, *EIGHT_MINI)], ids=["full", "mini"])
    def test_no_name_begins_with_another(self, jobs: tuple[Job, ...]) -> None:
        """And none appears twice."""
        names = [job.name for job in jobs]
        assert not any(one.startswith(two) for one, two in permutations(names, 2))

    @pytest.mark.parametrize("job", FULL, ids=lambda job: job.name)
    def test_they_are_larger_than_their_card(self, job: Job) -> None:
        """As the shapes of the network tell, near enough to what seconds are guessed from."""
        (part,) = find_parts(f"random:{job.model.spec}")
        size = weight_bytes(outline_part(part, dtype=torch.bfloat16))
        assert size > job.bytes
        assert size == pytest.approx(job.model.weights, rel=0.01)

    def test_eight_bits_are_half_the_bytes(self) -> None:
        """Of linear layers, which are nearly all there is."""
        (part,) = find_parts(f"random:{EIGHT[0].model.spec}")
        outline = outline_part(part, dtype=torch.bfloat16)
        store(outline)
        assert weight_bytes(outline) == pytest.approx(EIGHT[0].model.weights, rel=0.01)
        assert weight_bytes(outline) > EIGHT[0].bytes

    def test_ours_come_before_peers_and_what_has_to_be_before_the_rest(self) -> None:
        """So that what a run is for is done when time runs out."""
        runs = runs_of(FULL[:3])
        assert [run.who for run in runs[:6]] == [OURS] * 3 + [PACKED] * 3
        extras = [run.extra for run in runs]
        assert extras == sorted(extras)

    def test_the_plan_is_printed_with_its_seconds(self) -> None:
        """All of what has to be, summed up."""
        text = stream.plan(FULL, (OURS, *PEERS))
        assert all(f"{job.name} | {OURS}" in text for job in FULL)
        assert "if time is left" in text
        assert text.endswith("without what runs if time is left")

    def test_weights_are_drawn_once_for_all_sizes(self) -> None:
        """In what is expected, too."""
        alone = sum(building([job]) for job in EIGHT)
        assert max(building([job]) for job in EIGHT) < building(EIGHT) < alone
        text = stream.plan(EIGHT, (PACKED,))
        assert text.count("on the free card") == 1


class TestArithmetic:
    """What is said of a row."""

    def test_the_limit_is_the_longer_of_computing_and_copying(self) -> None:
        """Nothing copied is computing alone; what is not known gives none."""
        assert limit_of(0.2, 10**9, 10**10) == pytest.approx(0.2)
        assert limit_of(0.2, 4 * 10**9, 10**10) == pytest.approx(0.4)
        assert limit_of(0.2, 0, None) == pytest.approx(0.2)
        assert limit_of(0.2, 1, None) is None
        assert limit_of(None, 1, 1) is None

    def test_what_has_to_be_copied_at_least(self) -> None:
        """Weights and activations share the room; nothing where both fit."""
        assert least_copied(weights=22, beside=1, room=12) == 11
        assert least_copied(weights=10, beside=1, room=12) == 0

    def test_shares_and_rates(self) -> None:
        """None where a figure is missing."""
        row = a_row(
            seconds=0.3,
            limit_seconds=0.25,
            budget_bytes=100,
            peak_reserved_bytes=96,
            weights_bytes=8 * 10**9,
            setup_seconds=2.0,
            placing_seconds=1.0,
            host_seconds=0.002,
            pieces=40,
        )
        assert row.ratio == pytest.approx(1.2)
        assert row.share == pytest.approx(0.96)
        assert row.setup_rate == pytest.approx(4e9)
        assert row.placing_rate == pytest.approx(8e9)
        assert row.host_share == pytest.approx(0.005)
        bare = a_row()
        assert (bare.ratio, bare.share, bare.setup_rate, bare.host_share) == (None,) * 4
        assert (bare.placing_rate, a_row(setup_seconds=-1.0, weights_bytes=1).setup_rate) == (
            None,
            None,
        )

    def test_peers_are_held_against_our_limit(self) -> None:
        """That of the same job; the resident run has its own."""
        rows = [
            a_row(RESIDENT, limit_seconds=0.17),
            a_row(limit_seconds=0.25),
            a_row(LEAF),
            a_row(LEAF, job=FULL[1].name),
        ]
        assert [row.limit_seconds for row in finished(rows)] == [0.17, 0.25, 0.25, None]

    def test_bits_tell_what_numbers_do_not(self) -> None:
        """Zeros of both signs are equal numbers, and NaN is not even its own equal."""
        zero = torch.zeros(3, dtype=torch.bfloat16)
        assert same_bits(zero, zero.clone())
        assert not same_bits(zero, -zero)
        assert not same_bits(zero, zero.float())
        lost = torch.full((2,), torch.nan)
        assert same_bits(lost, lost.clone())
        assert digest(zero) != digest(-zero)
        assert rms(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.2)

    def test_a_budget_leaves_activations_and_a_margin(self) -> None:
        """Of those that are told one; a second try leaves more."""
        assert budget_of(room=12 * GIB, activations=GIB, margin=MARGINS[0]) == 10 * GIB
        assert budget_of(room=1, activations=GIB, margin=0) == MIB
        assert MARGINS[0] < MARGINS[1]
        assert [takes_budget(who) for who in PEERS] == [False, False, True, True]


class TestBars:
    """What counts as met."""

    def good(self) -> list[StreamRow]:
        ours = a_row(
            seconds=0.26,
            limit_seconds=0.255,
            resident_seconds=0.17,
            budget_bytes=1000,
            peak_reserved_bytes=960,
            bit_equal=True,
            pinned_bytes=1005,
            pinned_planned_bytes=1000,
            host_seconds=0.001,
            pieces=30,
            weights_bytes=24 * 10**9,
            setup_seconds=6.0,
            placing_seconds=5.0,
        )
        return [ours, a_row(LEAF, seconds=0.5), a_row(MMGP, completed=False)]

    def test_all_of_a_good_run(self) -> None:
        """A peer that failed is no peer."""
        assert all(holds for _, holds in verdicts(FIRST, self.good()))
        assert "**" not in summary([FIRST], self.good())

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"seconds": 0.27}, "1.059 x limit"),
            ({"seconds": 0.281}, "1.78 x the best peer"),
            ({"bit_equal": False}, "bit-equal"),
            ({"peak_reserved_bytes": 940}, "94.0% of the room"),
            ({"pinned_bytes": 1011}, "pinned +1.1% off"),
            ({"host_seconds": 0.0016}, "host work 5.33 ms"),
            ({"placing_seconds": 8.1}, "load, pack and pin 2.96 GB/s (>= 3) of 6.0 s set-up"),
        ],
    )
    def test_each_can_be_missed(self, change: dict[str, Any], words: str) -> None:
        """And is then in bold."""
        ours, *others = self.good()
        lines = summary([FIRST], [replace(ours, **change), *others])
        assert f"**{words}" in lines

    def test_copies_that_have_to_hide_are_held_against_the_resident_run(self) -> None:
        """Whatever the limit is."""
        job = next(job for job in FULL if job.behind)
        row = a_row(job=job.name, seconds=1.04, limit_seconds=1.04, resident_seconds=1.0)
        (words, holds), *_ = verdicts(job, [row])
        assert words.startswith("1.040 x resident")
        assert holds is False

    def test_what_was_not_measured_is_neither_met_nor_missed(self) -> None:
        """In none of its parts."""
        assert [holds for _, holds in verdicts(FIRST, [])] == [None]
        assert {holds for _, holds in verdicts(FIRST, [a_row()])} == {None}
        assert "**" not in summary([FIRST], [a_row()])

    def test_the_table_has_a_line_for_each_row(self) -> None:
        """In the order of jobs, resident first; failures keep their note."""
        rows = [
            a_row(MMGP, note="failed"),
            a_row(job=FULL[1].name),
            a_row(seconds=0.26, bit_equal=False, rms_error=0.5, copied_bytes=GIB),
            a_row(RESIDENT),
        ]
        lines = table(in_order(rows, FULL)).splitlines()[2:]
        assert [line.split(" | ")[1] for line in lines] == [RESIDENT, OURS, MMGP, OURS]
        assert "| rms 5.0e-01 |" in lines[1]
        assert lines[2].endswith("| failed |")


class TestPacked:
    """What is said of packed rows."""

    def good(self) -> StreamRow:
        return a_row(
            PACKED,
            seconds=0.188,
            resident_seconds=0.172,
            unpack_seconds=0.008,
            copied_bytes=9 * 10**9,
            link_rate=50 * 10**9,
            budget_bytes=1000,
            peak_reserved_bytes=990,
            weights_bytes=24 * 10**9,
            placing_seconds=7.0,
            bit_equal=True,
        )

    def told(self, job: Job, **change: Any) -> str:
        rows = [
            replace(self.good(), job=job.name, **change),
            replace(self.good(), job=job.name, who=OURS, seconds=0.26),
        ]
        return summary([job], packed_rows.renamed(rows, FULL), packed_rows.verdicts)

    def test_the_limit_with_unpacking(self) -> None:
        """Computing and unpacking wait for one another, copying for neither."""
        row = self.good()
        assert packed_rows.unpacking_limit(row) == pytest.approx(0.18)
        copied = replace(row, copied_bytes=10**10)
        assert packed_rows.unpacking_limit(copied) == pytest.approx(0.2)
        nothing = replace(row, copied_bytes=0, link_rate=None)
        assert packed_rows.unpacking_limit(nothing) == pytest.approx(0.18)
        for name in ("resident_seconds", "unpack_seconds", "copied_bytes", "link_rate"):
            assert packed_rows.unpacking_limit(replace(row, **{name: None})) is None

    def test_jobs_and_bars_are_those_of_the_issue(self) -> None:
        """Near the resident run, near the limit, faster than raw; leaf offload in one of them."""
        jobs = packed.packed_jobs((*FULL, *EIGHT))
        assert [(job.model.name, job.card, job.packed) for job in jobs] == [
            ("flux.1-dev", "12GiB", PackedBar("resident", 1.10)),
            ("flux.1-dev", "8GiB", PackedBar("limit", 1.05)),
            ("flux.1-dev", "6GiB", PackedBar("limit", 1.05)),
            ("flux.2-dev", "24GiB", PackedBar("raw", 1.25)),
            *[("flux.2-dev", "16GiB", PackedBar("limit", 1.05))] * 3,
        ]
        flux = stream.wanted(jobs[:3], (OURS, PACKED, LEAF))
        assert [run.job.card for run in flux if run.who == LEAF] == ["12GiB"]

    @pytest.mark.parametrize("job", packed.packed_jobs(FULL), ids=lambda job: job.name)
    def test_a_good_run_meets_all(self, job: Job) -> None:
        """Whatever it is held against."""
        assert "**" not in self.told(job)
        assert "not measured" not in self.told(job)

    @pytest.mark.parametrize(
        ("at", "change", "words"),
        [
            (0, {"seconds": 0.19}, "1.105 x resident (<= 1.1)"),
            (1, {"seconds": 0.19}, "1.056 x limit with unpacking (<= 1.05)"),
            (-1, {"seconds": 0.21}, "1.24 x faster than raw (>= 1.25)"),
            (0, {"bit_equal": False}, "bit-equal"),
            (0, {"peak_reserved_bytes": 1001}, "100.1% of the room (<= 100%)"),
            (0, {"placing_seconds": 8.1}, "load, pack and pin 2.96 GB/s (>= 3)"),
        ],
    )
    def test_each_can_be_missed(self, at: int, change: dict[str, Any], words: str) -> None:
        """And is then in bold."""
        assert f"**{words}**" in self.told(FULL[at], **change)

    def test_what_was_not_measured_is_neither_met_nor_missed(self) -> None:
        """In none of its parts, and where a job has no packed row."""
        for job in (*packed.packed_jobs(FULL), FULL[3]):
            for rows in ([], [a_row(job=job.name)]):
                assert {holds for _, holds in packed_rows.verdicts(job, rows)} == {None}


class TestFile:
    """Results of several calls in one file."""

    def test_rows_come_back_as_they_were(self, tmp_path: Path) -> None:
        """With what they hold beside other benchmarks' rows."""
        row = a_row(seconds=0.3, all_seconds=(0.3, 0.4), copied_bytes=5, digest="ab", pieces=3)
        write(tmp_path / "s.json", [row], machine={"gpu": "x"}, versions={"commit": "1"})
        assert read_rows(tmp_path / "s.json") == ([row], {"gpu": "x"}, {"commit": "1"})

    def test_what_is_kept_says_that_it_is_of_another_run(self) -> None:
        """Rows of the same job, and those of another source; what is new takes their place."""
        earlier = [a_row(note="a"), a_row(LEAF, note="b"), a_row(job="other", note="c")]
        same, other = {"commit": "1"}, {"commit": "2"}
        again = beside(earlier, [a_row(note="new")], then=same, now=same)
        assert [row.note for row in again] == ["b; measured in another run", "c", "new"]
        apart = beside(earlier, [a_row(note="new")], then=same, now=other)
        assert [row.note for row in apart] == [
            "b; measured apart, at commit 1",
            "c; measured apart, at commit 1",
            "new",
        ]
        assert beside(apart, [a_row(note="new")], then=same, now=other) == apart
        later = beside(apart, [a_row(job="more")], then=other, now={"commit": "3"})
        assert [row.note for row in later[:2]] == [row.note for row in apart[:2]]


class TestBallast:
    """Orders and answers."""

    def test_it_says_what_is_free(self) -> None:
        """So many bytes are left, or everything is let go."""
        answers, said = os.pipe()
        heard, orders = os.pipe()
        holder = Ballast(answers, orders)

        def hold() -> None:
            with os.fdopen(heard) as lines:
                for line in lines:
                    os.write(said, b"100\n" if line == "all\n" else line.encode())
            os.close(said)

        thread = threading.Thread(target=hold)
        thread.start()
        assert holder.leave(12) == 12
        assert holder.leave(None) == 100
        os.close(orders)
        thread.join()
        os.close(answers)

    def test_one_that_is_gone_is_an_error(self) -> None:
        """Not a wait without end."""
        answers, said = os.pipe()
        heard, orders = os.pipe()
        os.close(said)
        with pytest.raises(RuntimeError, match="is gone"):
            Ballast(answers, orders).leave(1)
        for each in (answers, heard, orders):
            os.close(each)


class Driver:
    """A card of a driver: some bytes, and no more than so many in one piece."""

    def __init__(self, total: int, most: int) -> None:
        self.total, self.most, self.taken = total, most, 0

    def empty(self, size: int, **_: Any) -> object:
        if size > min(self.most, self.total - self.taken):
            raise torch.OutOfMemoryError
        self.taken += size
        return object()


@pytest.mark.parametrize("most", [10**15, 70 * MIB])
def test_a_ballast_leaves_what_it_is_told(
    most: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To 2 MiB, at once or in pieces, and lets go before it holds anew."""
    driver = Driver(200 * MIB + 5, most)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(torch, "empty", driver.empty)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: setattr(driver, "taken", 0))
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda _: (driver.total - driver.taken, driver.total)
    )
    monkeypatch.setattr(sys, "argv", ["ballast.py"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{12 * MIB}\n{30 * MIB}\nall\n"))
    ballast.main()
    first, second, last = map(int, capsys.readouterr().out.split())
    assert 0 <= first - 12 * MIB < 2 * MIB
    assert 0 <= second - 30 * MIB < 2 * MIB
    assert last == driver.total


class Tied(nn.Module):
    """A tie, a buffer, a weight of another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.two.weight = self.one.weight
        self.half = nn.Linear(8, 3).to(torch.bfloat16)
        self.register_buffer("table", torch.arange(5))


class TestWeights:
    """From one process to another."""

    def test_what_is_shelved_is_what_others_map(self, tmp_path: Path) -> None:
        """Bits, dtypes and ties; what one of them writes stays its own."""
        module = Tied()
        shelf = Shelf.open(tmp_path)
        shelf.put(module)
        with torch.device("meta"):
            outlines = [Tied(), Tied()]
        filled, other = (shelf.fill(outline) for outline in outlines)
        shelf.close()
        for there, here in zip(weights(module), weights(filled), strict=True):
            assert there.path == here.path
            assert same_bits(here.tensor.detach(), there.tensor.detach())
        assert isinstance(filled, Tied)
        assert filled.one.weight is filled.two.weight
        assert not filled.one.weight.requires_grad
        filled.one.weight.fill_(7)
        assert isinstance(other, Tied)
        assert torch.equal(other.one.weight, module.one.weight)

    def test_what_comes_home_leaves_the_card(self) -> None:
        """Ties are on the host once."""
        card, module = open_card("virtual:1MiB"), Tied()
        before = [held.tensor.detach().clone() for held in weights(module)]
        module.to(card.device)
        module.two.weight = module.one.weight
        assert card.read().allocated
        bring_home(module)
        assert card.read().allocated == 0
        assert module.one.weight is module.two.weight
        after = [held.tensor.detach() for held in weights(module)]
        assert all(map(same_bits, after, before))

    def test_tables_in_attributes_are_refused(self, tmp_path: Path) -> None:
        """No shelf holds them."""
        module = Tied()
        shelf = Shelf.open(tmp_path)
        shelf.put(module)
        vars(module)["kept"] = torch.zeros(1)
        with pytest.raises(RuntimeError, match="plain attributes"):
            shelf.fill(module)
        shelf.close()


class TestSteps:
    """Inputs, times, and our own work."""

    def test_inputs_are_the_same_wherever_they_are(self) -> None:
        """By name, also where the pipeline gives some in order."""
        (part,) = find_parts("random:sdxl-mini/unet")
        outline = outline_part(part, dtype=torch.float32)
        card = open_card("virtual:64MiB")
        here, there = (
            inputs_of(part, outline, Size(64, 64), dtype=torch.float32, device=device).values
            for device in (torch.device("cpu"), card.device)
        )
        assert set(here) >= {"sample", "timestep", "encoder_hidden_states"}
        assert torch.equal(here["sample"], there["sample"].cpu())
        assert there["sample"].device == card.device

    def test_the_first_step_counts_apart(self) -> None:
        """And both ends give their results."""
        results = iter(torch.arange(100.0).split(1))
        done = timed(open_card("cpu"), lambda: next(results))
        assert len(done.seconds) == stream_steps.MOST
        assert done.early == 0
        assert done.late == stream_steps.WARM + len(done.seconds) - 1
        assert min(done.seconds) <= done.typical <= max(done.seconds)

    def test_only_our_hooks_count_and_all_is_put_back(self) -> None:
        """What others hang on a module, and the network itself, are not our work."""
        module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        calls: list[str] = []

        def theirs(*_: object) -> None:
            calls.append("theirs")

        def mine(*_: object) -> None:
            calls.append("ours")

        mine.__module__ = "tightfit.place.somewhere"
        module[0].register_forward_pre_hook(theirs)
        module[0].register_forward_hook(mine)
        before = [dict(part._forward_hooks) for part in module.modules()]
        seconds = host_seconds(open_card("cpu"), module, lambda: module(torch.zeros(1, 4)))
        assert 0 < seconds < 1
        assert calls == ["theirs", "ours"]
        assert [dict(part._forward_hooks) for part in module.modules()] == before
        assert "forward" not in vars(module)


class TestEightBits:
    """Weights as they are stored, and a plain way to compute with them."""

    def test_a_layer_has_the_values_that_are_meant_while_it_is_called(self) -> None:
        """And what is stored before and after, also when the call fails."""
        module = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8, bias=False))
        module.to(torch.bfloat16)
        module[2].weight.data.zero_()
        store(module)
        stored = [module[0].weight, module[2].weight]
        assert {each.dtype for each in stored} == {STORED}
        assert stored[0].float().abs().max() == torch.finfo(STORED).max
        x = torch.randn(2, 8, dtype=torch.bfloat16)
        weight = (stored[0].float() * module[0].weight_scale).bfloat16()
        with torch.no_grad(), converting(module, torch.bfloat16):
            given = module[0](x)
            assert torch.equal(given, nn.functional.linear(x, weight, module[0].bias))
            assert not module(x).any()
            with pytest.raises(RuntimeError):
                module[0](x[:, :3])
            assert module[0].weight is stored[0]
        with pytest.raises(RuntimeError):
            module(x)

    def test_modules_are_as_their_files_leave_them(self, tmp_path: Path) -> None:
        """Saved and loaded into another one, they are the same in all."""
        one, other = (nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4)) for _ in range(2))
        store(one)
        save_file(one.state_dict(), tmp_path / "weights.safetensors")
        tightfit.load_weights(other, tmp_path / "weights.safetensors")
        for here, there in zip(weights(one), weights(other), strict=True):
            assert (here.path, here.kind) == (there.path, there.kind)
            assert same_bits(here.tensor.detach(), there.tensor.detach())


class TestTrace:
    """Where the time of a step goes."""

    def test_spans_that_overlap_count_once(self) -> None:
        """In any order; a gap is not covered."""
        assert stream_trace.covered([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4
        assert stream_trace.covered([]) == 0

    def test_copies_from_the_host_are_no_work_of_the_card(self) -> None:
        """Nor is what the host did; copies within the card are."""
        told = [
            ("gemm", "CUDA", 0, 10),
            ("Memcpy HtoD (Pinned -> Device)", "CUDA", 5, 90),
            ("Memcpy DtoD (Device -> Device)", "CUDA", 20, 25),
            ("aten::mm", "CPU", 0, 100),
        ]
        events = [
            argparse.Namespace(
                name=name,
                device_type=argparse.Namespace(name=where),
                time_range=argparse.Namespace(start=start, end=end),
            )
            for name, where, start, end in told
        ]
        assert stream_trace.busy(events) == pytest.approx(15e-6)
        assert stream_trace.busy(events[1::2]) is None

    def test_what_is_left_is_waiting_for_launches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a step that was not profiled; where a figure is missing it is not known."""

        def told(stall: float | None) -> str:
            step = torch.zeros(1).clone
            return stream_trace.where_time_goes(
                open_card("cpu"), step, seconds=0.2, stall=stall, work=0.01
            )

        monkeypatch.setattr(stream_trace, "kernels", lambda *_: 0.15)
        assert "kernels 150.0 ms, waits for copies 20.0 ms, for launches 30.0 ms" in told(0.02)
        assert "host work 10.0 ms" in told(0.02)
        assert "waits for copies unknown, for launches unknown" in told(None)


class TestPeers:
    """Those that can be tried here."""

    def test_group_offload_gives_the_resident_bits(self) -> None:
        """Without streams, on the host."""
        (part,) = find_parts("random:flux.1-dev-mini/transformer")
        card = open_card("cpu")
        network = reside(part, card, dtype=torch.float32)
        step = inputs_of(
            part, network.outline, Size(64, 64), dtype=torch.float32, device=card.device
        ).into(network.module)
        wanted = step()
        prepare(LEAF, network.module, Room(card.device, GIB))
        assert same_bits(step(), wanted)


class TestProcess:
    """What a process does, in this one."""

    @pytest.fixture(autouse=True)
    def _few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Steps here are run, not timed."""
        for name in ("WARM", "LEAST", "MOST"):
            monkeypatch.setattr(stream_steps, name, 1)

    @pytest.mark.slow
    @pytest.mark.parametrize("alone", [False, True])
    def test_a_network_streams_with_the_bits_of_the_resident_one(
        self, tmp_path: Path, alone: bool
    ) -> None:
        """From the shelf, or brought home; the rows hold what is asked of them.

        Raw and packed, one after the other, with the same weights.
        """
        place = Place(None, tmp_path, Shelf.open(tmp_path))
        card = place.free_card()
        network = built(SMALL.model, card)
        whole, module = resident(place, SMALL.model, card, network), network.module
        assert whole.completed
        assert whole.seconds == whole.resident_seconds == whole.limit_seconds
        assert whole.weights_bytes == whole.resident_bytes
        mine: nn.Module | None = None
        if alone:
            come_home(module, card)
            mine = module
        else:
            shelve(place, module, card)
        rows = [row_of(place, SMALL, who, 0, mine) for who in (OURS, PACKED)]
        place.shelf.close()
        for row in rows:
            assert row.completed, row.note
            assert row.bit_equal
            assert row.digest == whole.digest
            assert f"output sha256 {whole.digest}" in row.note
            assert row.budget_bytes == SMALL.bytes
            assert 0 < (row.share or 0) <= 1
            assert row.copied_bytes
            assert row.pieces
            assert row.resident_seconds == whole.seconds
            assert 0 < (row.placing_seconds or 0) < 100
        raw, packed = rows
        assert (raw.packed_pieces, raw.unpack_seconds) == (0, 0.0)
        assert (raw.copied_bytes or 0) >= (raw.least_bytes or 0)
        assert (packed.packed_pieces or 0) > 0
        assert packed.unpack_seconds is None  # nobody knows how fast a virtual card is

    @pytest.mark.slow
    def test_eight_bits_stream_at_every_size_with_the_bits_of_the_resident_run(
        self, tmp_path: Path
    ) -> None:
        """One after another with the same weights, each within its card; and a trace is told."""
        place = Place(None, tmp_path, Shelf.open(tmp_path), traced=True)
        place.shelf.close()
        card = place.free_card()
        network = built(EIGHT_MINI[0].model, card)
        wholes = [resident(place, job.model, card, network) for job in EIGHT_MINI]
        module = network.module
        del network
        come_home(module, card)
        assert STORED in {held.tensor.dtype for held in weights(module)}
        for job, whole in zip(EIGHT_MINI, wholes, strict=True):
            assert "converted" in whole.note
            row = row_of(place, job, PACKED, 0, module)
            assert row.completed, row.note
            assert row.bit_equal
            assert row.digest == whole.digest
            assert 0 < (row.share or 0) <= 1
            assert row.copied_bytes
            assert "traced: a step of" in row.note
        assert wholes[0].digest != wholes[1].digest

    def test_a_failure_is_a_row_with_a_note(self, tmp_path: Path) -> None:
        """Here nothing is on the shelf."""
        place = Place(None, tmp_path, Shelf.open(tmp_path))
        row = row_of(place, SMALL, LEAF, 0, None)
        place.shelf.close()
        assert not row.completed
        assert "FileNotFoundError" in row.note
        assert row.budget_bytes == SMALL.bytes


class Told(stream.Bench):
    """Processes that are only pretended."""

    def __init__(self, jobs: Sequence[Job], seconds: float, folder: Path, **more: Any) -> None:
        who = more.pop("who", (OURS, *PEERS))
        options = argparse.Namespace(seconds=seconds, who=who, cpu=True, touch=None, commit=None)
        options.traced = False
        super().__init__(options, jobs, folder, more.pop("raw", None), more.pop("packed", None))
        self.asked: list[tuple[list[str], int]] = []
        self.spent = 0.0
        self.fails: set[str] = more.pop("fails", set())

    def _process(self, what: Sequence[str], *given: Any) -> list[StreamRow]:
        self.asked.append((list(what), given[4] if len(given) > 4 else 0))
        self.spent += given[3]
        self._machine, self._versions = {"gpu": "none"}, {"commit": "1"}
        pairs = rows_of(what)
        if what[0] in self.fails:
            note = "torch.OutOfMemoryError"
            return [a_row(who, job=name, completed=False, note=note) for who, name in pairs]
        models = given[0] if what[0] == RESIDENT else ()
        rows = [a_row(RESIDENT, job=model.title, seconds=1.0) for model in models]
        return [*rows, *(a_row(who, job=name, seconds=2.0) for who, name in pairs)]

    def _left(self) -> float:
        return float(self.options.seconds) - self.spent


class TestCall:
    """What runs when."""

    def test_everything_where_there_is_time(self, tmp_path: Path) -> None:
        """One resident run for each network, and a resident row in each job."""
        bench = Told(FULL, 1e6, tmp_path)
        bench.run()
        assert [what for what, _ in bench.asked if what[0] == RESIDENT] == [
            [RESIDENT],
            [RESIDENT],
            [RESIDENT],
            [RESIDENT, f"{OURS}: {FULL[-1].name}"],
        ]
        for job in FULL:
            found = {row.who for row in bench.rows if row.job == job.name}
            assert found == {RESIDENT, OURS, *job.peers, *job.extras}
        assert not bench.late

    def test_what_runs_if_time_is_left_leaves_the_rest_its_time(self, tmp_path: Path) -> None:
        """Extras are late, not the networks that come after them."""
        needed = sum(
            building(jobs)
            + sum(r.seconds for r in stream.wanted(jobs, (OURS, *PEERS)) if not r.extra)
            for jobs in (FULL[:3], FULL[3:4], FULL[4:5], FULL[5:])
        )
        bench = Told(FULL, needed + 60, tmp_path)
        bench.run()
        assert {row.job for row in bench.rows if row.who == OURS} == {job.name for job in FULL}
        assert {row.who for row in bench.rows if row.job == FIRST.name} == {RESIDENT, OURS, *PEERS}
        assert bench.late
        assert all(run.extra for run in bench.late)
        assert bench.spent <= needed + 60

    def test_what_there_is_no_time_for_is_told(self, tmp_path: Path) -> None:
        """Nothing of a network starts where it cannot even be built."""
        bench = Told(FULL[:1], 5.0, tmp_path)
        bench.run()
        assert not bench.rows
        assert [run.who for run in bench.late] == [OURS, *PEERS]

    def test_a_budget_that_was_too_large_is_made_smaller_once(self, tmp_path: Path) -> None:
        """For those that are told one."""
        bench = Told(FULL[:1], 1e6, tmp_path, fails={MMGP, LEAF})
        bench.run()
        assert [margin for what, margin in bench.asked if what[0] == MMGP] == list(MARGINS)
        assert len([what for what, _ in bench.asked if what[0] == LEAF]) == 1
        assert len([row for row in bench.rows if row.who == MMGP]) == 1

    def test_without_a_resident_run_nothing_else_is_run(self, tmp_path: Path) -> None:
        """And each row says why."""
        bench = Told(FULL[:1], 1e6, tmp_path, fails={RESIDENT})
        bench.run()
        assert len(bench.asked) == 1
        assert {row.who for row in bench.rows} == {OURS, *PEERS}
        assert all("resident run failed" in row.note for row in bench.rows)

    def test_one_call_writes_raw_and_packed_rows_to_a_file_each(self, tmp_path: Path) -> None:
        """In the packed one packed streaming is ours, with resident row and peers beside it."""
        raw, packed = tmp_path / "stream.json", tmp_path / "packed.json"
        who = (OURS, *PEERS, PACKED)
        bench = Told(FULL, 1e6, tmp_path, who=who, raw=raw, packed=packed)
        bench.run()
        assert bench.asked[-1][0] == [
            RESIDENT,
            f"{OURS}: {FULL[-1].name}",
            f"{PACKED}: {FULL[-1].name}",
        ]
        rows, machine, versions = read_rows(raw)
        assert (machine, versions) == ({"gpu": "none"}, {"commit": "1"})
        assert PACKED not in {row.who for row in rows}
        assert {row.job for row in rows} == {job.name for job in FULL}
        rows, _, _ = read_rows(packed)
        assert {row.job for row in rows} == {job.name for job in FULL if job.packed}
        assert {row.who for row in rows if row.job == FIRST.name} == {RESIDENT, OURS, RAW, *PEERS}
        assert {row.who for row in rows if row.job == FULL[-1].name} == {RESIDENT, OURS, RAW}

    def test_sizes_of_one_network_share_a_process_and_have_a_resident_row_each(
        self, tmp_path: Path
    ) -> None:
        """Drawn once, and streamed at each size by the process that drew them."""
        path = tmp_path / "packed.json"
        bench = Told(EIGHT, 1e6, tmp_path, who=(OURS, PACKED, LEAF), packed=path)
        bench.run()
        assert [what for what, _ in bench.asked] == [
            [RESIDENT, *(f"{PACKED}: {job.name}" for job in EIGHT)]
        ]
        rows, _, _ = read_rows(path)
        assert [(row.job, row.who) for row in rows] == [
            (job.name, who) for job in EIGHT for who in (RESIDENT, OURS)
        ]

    def test_what_a_file_had_stays_beside_what_is_new(self, tmp_path: Path) -> None:
        """Also under the names that it has there."""
        packed = tmp_path / "packed.json"
        for jobs in (FULL[1:2], FULL[:1]):
            folder = tmp_path / jobs[0].card
            folder.mkdir()
            Told(jobs, 1e6, folder, who=(OURS, PACKED), packed=packed).run()
        rows, _, _ = read_rows(packed)
        assert [(row.job, row.who) for row in rows] == [
            (job.name, who) for job in FULL[:2] for who in (RESIDENT, OURS, RAW)
        ]

    def test_a_process_that_dies_is_a_row(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With how it ended."""

        def dies(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
            return subprocess.CompletedProcess(command, -9)

        monkeypatch.setattr(subprocess, "run", dies)
        options = argparse.Namespace(seconds=99, who=(OURS,), cpu=True, touch=None, commit=None)
        options.traced = False
        bench = stream.Bench(options, FULL[:1], tmp_path, None)
        bench._end = 1e9
        shelf = Shelf.open(tmp_path)
        (row,) = bench._process([OURS, FIRST.name], [FIRST.model], shelf, None, 1.0)
        label = Run(FIRST, PACKED).label
        (other,) = bench._process([RESIDENT, label], [FIRST.model], shelf, None, 1.0)
        shelf.close()
        assert not row.completed
        assert row.note == "its process ended with -9"
        assert (other.who, other.job, other.completed) == (PACKED, FIRST.name, False)
