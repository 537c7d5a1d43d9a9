"""The benchmark of whole pipelines: its jobs, its arithmetic, and one row without a GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pipeline
import pytest
import torch
from pipeline_jobs import (
    EVERY,
    FULL,
    GROUP,
    MARGINS,
    MINI,
    MMGP,
    MODEL,
    OURS,
    PEERS,
    RESIDENT,
    WIDENED,
    Job,
    Model,
    runs_of,
)
from pipeline_peers import HOST_MARGIN, pinned_bytes
from pipeline_place import Place, Whole
from pipeline_rows import (
    PipelineRow,
    bound_of,
    compared,
    in_order,
    read_rows,
    summary,
    table,
    verdicts,
)
from pipeline_run import row_of
from pipeline_weights import Store, drawn
from rows import write
from torch import nn

from tightfit.adapters.known.pipelines import PIPELINES
from tightfit.adapters.loading.whole import find_pipeline
from tightfit.card.host_memory import read_host_memory
from tightfit.plan.size import Size
from tightfit.units import GIB

SMALL = Job(
    Model("small", "flux.1-dev-mini", Size(32, 32), "32", 2, 1e7, 0.1),
    "24MiB",
)
OUR_ROW = PipelineRow(
    SMALL.name,
    OURS,
    seconds=10.0,
    peak_reserved_bytes=SMALL.bytes,
    bound="link-bound",
    stages={"text_encoder": 1.0, "transformer": 7.0, "vae": 1.8},
    digest="one",
)
PEER_ROW = PipelineRow(SMALL.name, MODEL, seconds=17.0, digest="one")


def test_no_job_begins_with_another_and_all_pipelines_are_known() -> None:
    """Rows are found by how their job begins."""
    names = [job.name for job in (*FULL, *MINI)]
    assert not [pair for pair in permutations(names, 2) if pair[1].startswith(pair[0])]
    assert {job.model.spec for job in (*FULL, *MINI)} <= PIPELINES.keys()


def test_the_resident_row_runs_once_and_first() -> None:
    """It is the same for every card; what has no room for a copy has no peers."""
    flux = [job for job in FULL if job.model.name == "flux.1-dev"]
    runs = runs_of(flux, EVERY)
    assert runs[0] == (flux[0], RESIDENT)
    assert len(runs) == 1 + len(flux) * (len(flux[0].whos) - 1)
    large = [job for job in FULL if job.model.alone]
    assert {who for _, who in runs_of(large[:1], EVERY)} == {RESIDENT, OURS}


def test_the_link_binds_where_copies_take_longer_than_the_step() -> None:
    """B is what has no room, once for each call in a step."""

    def bound(room: int, passes: int) -> str:
        return bound_of(step=1.0, weights=20 * GIB, room=room * GIB, rate=10 * GIB, passes=passes)

    assert bound(room=8, passes=1) == "link-bound"
    assert bound(room=12, passes=1) == "compute-bound"
    assert bound(room=12, passes=2) == "link-bound"
    assert bound(room=30, passes=2) == "compute-bound"


def test_rows_are_held_against_the_best_peer_and_the_budget() -> None:
    """1.6 times where the link binds, not slower where it does not."""
    assert [holds for _, holds in verdicts(SMALL, [OUR_ROW, PEER_ROW])] == [True, True, True]
    slow = replace(PEER_ROW, seconds=12.0)
    assert [holds for _, holds in verdicts(SMALL, [OUR_ROW, slow])] == [True, False, True]
    free = replace(OUR_ROW, bound="compute-bound", peak_reserved_bytes=SMALL.bytes + 1, stages={})
    assert [holds for _, holds in verdicts(SMALL, [free, slow])] == [False, True]
    gone = replace(OUR_ROW, completed=False)
    assert list(verdicts(SMALL, [gone, slow])) == [("finishes", False)]
    assert "**finishes**" in summary([SMALL], [gone])


def test_latents_are_compared_with_ours(tmp_path: Path) -> None:
    """Rows survive the file, in order; who has other latents is told."""
    rows = compared([replace(PEER_ROW, digest="two"), OUR_ROW])
    ordered = in_order(rows, [SMALL.name])
    assert [(row.who, row.bit_equal) for row in ordered] == [(OURS, True), (MODEL, False)]
    write(tmp_path / "rows.json", ordered, machine={}, versions={"commit": "x"})
    again, _, versions = read_rows(tmp_path / "rows.json")
    assert (again, versions) == (ordered, {"commit": "x"})
    assert "other bits" in table(again)


def test_pinning_each_weight_rounds_it_up_and_counts_ties_once() -> None:
    """PyTorch pins powers of two; what a peer would pin is known before the host is out of it."""
    one, tied = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
    tied.weight = one.weight
    assert pinned_bytes([one, tied]) == 128


def test_a_peer_that_was_short_of_memory_runs_once_more_with_a_smaller_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only who is told a budget, and only for memory; the second row counts."""
    margins: list[tuple[str, int]] = []

    def process(
        bench: pipeline.Bench, job: Job, who: str, *_: object, margin: int = 1
    ) -> PipelineRow:
        margins.append((who, margin))
        note = "OutOfMemoryError: CUDA out of memory." if margin == 1 else ""
        return PipelineRow(job.name, who, completed=margin != 1, note=note)

    monkeypatch.setattr(pipeline.Bench, "_process", process)
    monkeypatch.setattr(pipeline.Store, "put", lambda *_, **__: None)
    options = pipeline._parser().parse_args(["--cpu", "--who", f"{MODEL},{MMGP}"])
    bench = pipeline.Bench(options, [SMALL], tmp_path, None)
    bench.run()
    assert sorted(margins) == sorted([(MODEL, 1), (MMGP, 1), (MMGP, MARGINS[1])])
    assert {row.who: row.completed for row in bench.rows} == {MODEL: False, MMGP: True}


def test_a_plan_is_printed_without_running(capsys: pytest.CaptureFixture[str]) -> None:
    """Each row with the seconds that are expected of it."""
    assert pipeline.main(["--plan", "--only", "sdxl *"]) == 0
    told = capsys.readouterr().err
    assert "weights are drawn" in told
    assert all(f"sdxl 1024 30steps 4GiB | {who}" in told for who in PEERS if who != WIDENED)


@pytest.mark.parametrize("how", [None, "fp8"])
def test_the_store_gives_every_process_the_weights_that_were_drawn(
    how: str | None, tmp_path: Path
) -> None:
    """Ties once, scales with them; tables have the values of their class."""
    store = Store.open(tmp_path)
    try:
        store.put("random:flux.1-dev-mini", how)
        source = find_pipeline("random:flux.1-dev-mini")
        pipe = store.pipeline(source)
        for part in source.parts:
            wanted, found = drawn(part, how).state_dict(), getattr(pipe, part.name).state_dict()
            assert wanted.keys() == found.keys()
            for key, each in wanted.items():
                assert torch.equal(each.float(), found[key].float()), key
        encoder = pipe.text_encoder_2
        assert encoder.shared.weight is encoder.encoder.embed_tokens.weight
    finally:
        store.close()


def test_a_row_of_ours_is_within_the_card_and_tells_its_stages(tmp_path: Path) -> None:
    """On a virtual card, beside what a resident run is said to take."""
    place = Place(None, tmp_path, None)
    place.keep(Whole(seconds=1.0, step=0.1, activations=1000, passes=1.0))
    row = row_of(place, SMALL, OURS, math.inf)
    assert row.completed, row.note
    assert row.peak_reserved_bytes is not None
    assert row.peak_reserved_bytes <= SMALL.bytes
    assert set(row.stages) == {"text_encoder", "text_encoder_2", "transformer", "vae"}
    assert row.first_seconds is not None
    assert len(row.digest or "") == 64
    failed = row_of(place, replace(SMALL, card="1MiB"), OURS, math.inf)
    assert not failed.completed
    assert "MemoryShortage" in failed.note


@pytest.mark.slow
def test_an_encoder_alone_is_used_in_float32_and_has_the_bits_of_one_that_was_converted(
    tmp_path: Path,
) -> None:
    """Which is larger than the card, as its row says; what was widened is in the plan."""
    job = next(job for job in MINI if job.model.part is not None and job.model.weights is None)
    place = Place(None, tmp_path, None)
    whole, ours = (row_of(place, job, who, -math.inf) for who in (RESIDENT, OURS))
    assert whole.completed, whole.note
    assert ours.completed, ours.note
    assert ours.digest == whole.digest
    assert ours.peak_reserved_bytes is not None
    assert ours.peak_reserved_bytes <= job.bytes < (whole.peak_reserved_bytes or 0)
    assert "256.0 KiB for layers in float32" in ours.note


def test_an_encoder_that_the_host_cannot_hold_in_float32_is_not_widened_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its row says how much it would take; nothing dies of it."""
    job = next(job for job in MINI if job.model.part is not None)
    little = replace(read_host_memory(), ram_available=HOST_MARGIN)
    monkeypatch.setattr("pipeline_part.read_host_memory", lambda: little)
    row = row_of(Place(None, tmp_path, None), job, GROUP, math.inf)
    assert not row.completed
    assert "of host memory" in row.note
