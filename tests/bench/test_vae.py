"""The benchmark of VAEs: its jobs, its arithmetic, and its steps without a GPU."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
import vae
import vae_calls
from rows import Try, write
from vae_calls import timed
from vae_jobs import EVERY, FULL, MINI, OURS, TILED, TILED_512, WHOLE, Job, smooth
from vae_peers import plain, tiled
from vae_rows import (
    VaeRow,
    beside,
    copying,
    in_order,
    limit_of,
    read_rows,
    summary,
    table,
    verdicts,
)
from vae_run import Bench
from vae_trace import broken_down, traced

from tightfit.adapters import find_vae, load_vae, outline_vae
from tightfit.card import open_card
from tightfit.units import GIB, MIB

SMALL = Job("small decode", "flux-vae-mini", "decode", (64, 64), GIB, bar=1.4, tile=32)
ROW = VaeRow(
    SMALL.name,
    OURS,
    seconds=1.2,
    whole_seconds=1.0,
    peak_reserved_bytes=GIB,
    rms_error=0.01,
    fp32_rms_error=0.011,
    rung="strips",
    exact=True,
)


def test_no_job_begins_with_another() -> None:
    """Rows are found by how their job begins."""
    names = [job.name for job in (*FULL, *MINI)]
    assert not [pair for pair in permutations(names, 2) if pair[1].startswith(pair[0])]


def test_every_source_is_one_that_the_vae_takes() -> None:
    """The source of each small job has the channels and the sizes of its direction."""
    for job in MINI:
        traits = find_vae(f"random:{job.network}").traits
        source = job.source(traits)
        assert source.dtype is torch.float32
        if job.direction == "decode":
            wanted = (1, traits.latent_channels, *traits.latent_sizes(job.sizes))
            assert tuple(source.shape) == wanted
        else:
            assert source.shape[1:] == (3, *job.sizes[-2:])
            assert bool(((source >= 0) & (source <= 1)).all())


def test_smooth_values_are_the_same_each_time_and_change_slowly() -> None:
    """Neighbours are much closer to each other than values far apart."""
    for shape in ((1, 4, 64, 96), (1, 4, 3, 64, 96)):
        one = smooth(shape)
        assert torch.equal(one, smooth(shape))
        near = (one[..., 1:] - one[..., :-1]).std()
        far = (one[..., 48:] - one[..., :-48]).std()
        assert near * 3 < far


def test_time_on_the_card_is_broken_down_without_counting_twice() -> None:
    """Kernels that overlap count once, copies have bytes, and what is not of the card is left."""

    def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}

    seen = broken_down(
        [
            event("kernel", "conv", 1e6, 1e6),
            event("kernel", "norm", 1.5e6, 1e6),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0.5e6, 1e6, bytes=10),
            event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 3e6, 1e6, bytes=7),
            event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 3e6, 0.5e6, bytes=99),
            event("cuda_runtime", "cudaLaunchKernel", 0.0, 9e6),
            {"ph": "M", "name": "process_name"},
        ]
    )
    assert seen is not None
    assert (seen.span, seen.compute, seen.up, seen.down) == (3.5, 2.0, 1.0, 1.0)
    assert seen.wait == 1.5
    assert (seen.up_bytes, seen.down_bytes) == (10, 7)
    assert broken_down([]) is None


def test_only_a_cuda_card_is_traced() -> None:
    """Nobody can tell what a virtual card computes."""
    assert traced(open_card("virtual:1GiB"), lambda: pytest.fail("it ran")) is None


def test_the_limit_is_the_slower_of_computing_and_copying() -> None:
    """Directions overlap, and what is not known leaves it unknown."""
    assert copying(100, 40, 10) == 10
    assert limit_of(3.0, 100, 40, 10) == 10
    assert limit_of(30.0, 100, 40, 10) == 30
    assert limit_of(None, 100, 40, 10) is None
    assert limit_of(3.0, None, 40, 10) is None
    assert limit_of(3.0, 100, 40, None) is None


def test_every_bar_can_be_missed() -> None:
    """Each figure that is over its bar is not met, and one that is unknown is not measured."""
    whole = VaeRow(SMALL.name, WHOLE, seconds=1.0, fp32_rms_error=0.0105)

    def told(row: VaeRow) -> list[bool | None]:
        return [holds for _, holds in verdicts(SMALL, [whole, row])]

    assert told(ROW) == [True] * 5
    missed = (
        {"exact": False},
        {"peak_reserved_bytes": GIB + 1},
        {"seconds": 1.41},
        {"rms_error": 0.021},
        {"fp32_rms_error": 0.0117},
    )
    for at, change in enumerate(missed):
        row = replace(ROW, **change)
        assert told(row) == [place != at for place in range(5)]
        assert "**" in summary([SMALL], [whole, row])
    assert told(replace(ROW, fp32_rms_error=None))[-1] is None
    assert told(replace(ROW, completed=False)) == [False]
    assert [holds for _, holds in verdicts(SMALL, [])] == [None]


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    """Everything in them, the tries as well."""
    row = replace(
        ROW, attempts=(Try("strips", "ok"), Try("tiles", "oom", (64, 64))), all_seconds=(1.0, 1.2)
    )
    path = tmp_path / "vae.json"
    write(path, [row], machine={"card": "c"}, versions={"commit": "1"})
    assert read_rows(path) == ([row], {"card": "c"}, {"commit": "1"})


def test_jobs_that_did_not_run_keep_their_rows_and_say_of_which_source_they_are() -> None:
    """A job that ran again has its new rows alone."""
    other = replace(ROW, job="other")
    then, now = {"commit": "1"}, {"commit": "2"}
    (kept,) = beside([ROW, other], [ROW], then=then, now=now)
    assert kept.job == "other"
    assert "at commit 1" in kept.note
    assert beside([kept], [ROW], then=then, now=now) == [kept]


def test_rows_stand_side_by_side() -> None:
    """By job, then the whole, ours, the peers; each has a line in the table."""
    names = [job.name for job in FULL]
    rows = [VaeRow(name, who) for name in reversed(names) for who in reversed(EVERY)]
    ordered = in_order(rows, names)
    assert [(row.job, row.who) for row in ordered] == [(n, w) for n in names for w in EVERY]
    assert table(ordered).count("\n") == len(rows) + 1


@pytest.mark.parametrize("network", ["flux-vae-mini", "wan2.1-vae-mini"])
def test_tiles_of_a_size_keep_the_proportions_of_the_defaults(network: str) -> None:
    """And the VAE is as before afterwards, whatever happened."""
    outline = outline_vae(find_vae(f"random:{network}"))
    assert outline is not None
    module = outline.module
    before = {k: v for k, v in vars(module).items() if k.startswith(("tile_", "use_tiling"))}
    with tiled(module, None) as words:
        assert vars(module) | before | {"use_tiling": True} == vars(module)
        assert words.startswith("tiles ")
    with tiled(module, 64) as words:
        assert words == "tiles 64x64"
        now = vars(module)
        for name, value in before.items():
            if name.startswith("tile_") and "overlap" not in name:
                assert now[name] / value == 64 / _tile(before)
    assert vars(module) | before == vars(module)
    with pytest.raises(ZeroDivisionError), tiled(module, 64):
        raise ZeroDivisionError
    assert vars(module) | before == vars(module)


def _tile(attributes: dict[str, Any]) -> int:
    names = ("tile_sample_min_size", "tile_sample_min_height")
    return next(int(attributes[name]) for name in names if name in attributes)


def test_a_plain_call_is_what_the_library_calls_whole() -> None:
    """The bits of the adapter, in both directions."""
    loaded = load_vae(find_vae("random:flux-vae-mini"))
    for direction, shape in (("encode", (1, 3, 32, 32)), ("decode", (1, 16, 4, 4))):
        values = smooth(shape)
        call = plain(loaded.module, direction, torch.device("cpu"))  # type: ignore[arg-type]
        with torch.no_grad():
            wanted = loaded.call(direction)(values)  # type: ignore[arg-type]
        assert torch.equal(call(values), wanted)


def test_a_slow_call_of_a_peer_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ours is called again however long it takes."""
    monkeypatch.setattr(vae_calls, "_LONG", 0.0)
    card, calls = open_card("virtual:1GiB"), []

    def call() -> torch.Tensor:
        calls.append(1)
        return torch.ones(1)

    seen = timed(card, call, calls=1, patient=False)
    assert (len(calls), seen.seconds) == (1, (seen.first,))
    seen = timed(card, call, calls=1)
    assert (len(calls), len(seen.seconds)) == (3, 1)
    assert seen.seconds != (seen.first,)


def test_all_ways_are_measured_beside_each_other() -> None:
    """The whole is what the others are compared with, and the host has the weights afterwards."""
    bench = Bench(SMALL, open_card("virtual:1GiB"), calls=1)
    rows = list(bench.rows())
    assert [row.who for row in rows] == [*EVERY, WHOLE, OURS]
    found = {row.who: row for row in rows}
    assert all(row.completed and row.seconds and row.whole_seconds for row in rows)
    assert found[WHOLE].bit_equal
    assert found[OURS].bit_equal
    assert found[OURS].exact
    assert found[OURS].budget_bytes == SMALL.budget
    assert found[OURS].rms_error == 0
    assert found[OURS].fp32_rms_error == found[WHOLE].fp32_rms_error
    assert 0 < (found[WHOLE].fp32_rms_error or 0) < 0.1
    assert found[TILED].bit_equal
    assert not found[TILED_512].bit_equal
    for row in rows:
        assert (row.peak_reserved_bytes or 0) >= (row.weights_bytes or 0) > 0
        assert f"host_peak_bytes {row.host_peak_bytes} " in row.note
    assert bench.card.read().allocated == 0
    assert {weight.device.type for weight in bench.vae.module.parameters()} == {"cpu"}


def test_a_way_that_fails_is_a_row_and_the_others_run() -> None:
    """A whole that does not fit leaves the others with nothing to compare with."""
    job = replace(SMALL, sizes=(96, 96), budget=1 * MIB)
    found = {row.who: row for row in Bench(job, open_card("virtual:4MiB"), calls=1).rows()}
    assert list(found) == list(EVERY)
    assert not found[WHOLE].completed
    assert "does not fit" in found[WHOLE].note
    assert not found[OURS].completed
    assert found[OURS].note
    assert found[TILED_512].completed
    assert found[TILED_512].rms_error is None


def test_no_peer_starts_after_the_deadline() -> None:
    """The whole and ours do, since they are what is asked for."""
    rows = list(Bench(SMALL, open_card("virtual:1GiB"), calls=1, deadline=0.0).rows())
    first = {row.who: row.completed for row in rows[: len(EVERY)]}
    assert first == {WHOLE: True, OURS: True, TILED: False, TILED_512: False}
    assert all("no time was left" in row.note for row in rows[2:])


def test_a_process_that_dies_leaves_rows_and_the_next_job_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it had written stays; what it did not get to says how it ended."""
    jobs = (SMALL, replace(SMALL, name="another"))

    @contextmanager
    def started(_options: Any, job: Job, part: Path, _seconds: float) -> Iterator[Any]:
        write(part, [VaeRow(job.name, WHOLE, seconds=1.0)], machine={}, versions={})
        with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
            yield process

    monkeypatch.setattr(vae, "_started", started)
    options = argparse.Namespace(seconds=100.0, who=EVERY)
    output = tmp_path / "vae.json"
    rows = vae.Runs(options, jobs, tmp_path, output).all()
    assert [(row.job, row.who) for row in rows] == [(j.name, w) for j in jobs for w in EVERY]
    assert [row.completed for row in rows] == [True, False, False, False] * 2
    assert all("ended with 3" in row.note for row in rows if not row.completed)
    assert {(row.job, row.who) for row in read_rows(output)[0]} == {
        (row.job, row.who) for row in rows
    }
