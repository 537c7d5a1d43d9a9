"""Group L, on traces: bounded, and honest about what cannot be seen."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cases.common import run_checked, virtual
from tests.report.made import MIB
from tightfit.card import history, open_card
from tightfit.card.host import HostCard
from tightfit.report.modules import table
from tightfit.report.trace_file import Trace, read_trace
from tightfit.run.job import Job, Request
from tightfit.settings import ALLOCATOR_VARIABLES, Settings
from tightfit.testing import toy_vae
from tightfit.watch import Recorder
from tightfit.watch.events import Allocate, Free
from tightfit.watch.moves import moves_told
from tightfit.watch.teller import Teller

EVENTS, CAP = 100_000, 1000


def test_l05_a_hundred_thousand_events_with_a_cap_of_a_thousand(tmp_path: Path) -> None:
    """The newest 1000 are kept, the others counted; peak and live totals stay exact."""
    recorder = Recorder(limit=CAP, fine=True)
    live = peak = 0
    for at in range(EVENTS):
        size = at % 997 + 1
        grows = at % 3 < 2
        live += size if grows else -size
        peak = max(peak, live)
        recorder.tell(Allocate(size) if grows else Free(size))
        recorder.memory(live, live + 1)
    path = tmp_path / "t.jsonl"
    recorder.write(path)
    trace = read_trace(path)
    assert len(trace.events) == CAP
    told = recorder.counts["memory"] + EVENTS
    assert trace.dropped == recorder.dropped == told - CAP
    assert trace.header["counts"] == dict(recorder.counts)
    assert recorder.live_bytes == live
    assert trace.header["allocated_bytes"] - trace.header["freed_bytes"] == live
    assert (trace.peak_allocated_bytes, trace.peak_reserved_bytes) == (peak, peak + 1)
    newest = [event for event in trace.events if event["event"] in ("allocate", "free")]
    expected = range(EVENTS - len(newest), EVENTS)
    assert [event["bytes"] for event in newest] == [at % 997 + 1 for at in expected]


def test_l05_host_memory_does_not_grow_with_events() -> None:
    """Ten times as many events after the ring is full take no more of it."""
    recorder = Recorder(limit=CAP, fine=True)

    def tell(count: int) -> int:
        for at in range(count):
            recorder.tell(Allocate(at + 1, at, "module:1 function"))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        first = tell(2 * CAP)
        last = tell(20 * CAP)
    finally:
        tracemalloc.stop()
    assert recorder.dropped == 21 * CAP
    assert last - first < 64 * 1024


def test_l06_under_cudamallocasync_the_trace_says_what_it_cannot_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps an account of its own, asks for no history, and leaves the allocator alone."""
    asked: list[Any] = []
    monkeypatch.setattr(
        history.torch.cuda.memory, "_record_memory_history", lambda **_: asked.append(1)
    )
    for variable in ALLOCATOR_VARIABLES:
        monkeypatch.setenv(variable, "backend:cudaMallocAsync")
    before = Settings.from_environ()
    card = HostCard()  # its tensors can be made here; that it is CUDA's is what it says
    monkeypatch.setattr(card, "kind", "cuda", raising=False)
    monkeypatch.setattr(card, "allocator", "async", raising=False)
    recorder = Recorder(fine=True)
    vae = toy_vae("V2")
    with moves_told(card, recorder), torch.no_grad():
        latent = vae.encode(torch.rand(1, 3, 64, 64))
    gc.collect()
    texts = [event["text"] for event in recorder.events() if event["event"] == "unseen"]
    assert len(texts) == 1
    assert "cudaMallocAsync keeps no history" in texts[0]
    assert "cannot be seen" in texts[0]
    assert recorder.live_bytes == latent.untyped_storage().nbytes()
    assert recorder.allocated_bytes > recorder.live_bytes
    assert asked == []
    assert card.allocator == "async"
    assert Settings.from_environ() == before


@pytest.mark.parametrize("kind", ["native", "async"])
def test_l06_the_table_of_blocks_and_the_trace_work_with_both_allocators(kind: str) -> None:
    """The seed's series on each: async takes steps of its grain, native none at 320 MiB."""
    card = virtual(f"8GiB,allocator={kind}")
    recorder = Recorder(fine=True)
    teller = Teller("transformer", card, recorder)
    kept = []
    with moves_told(card, recorder):
        for at, size in enumerate([1280, 320, 320, 40, 40, 40, 40, 10]):
            kept.append(torch.empty(size * MIB, dtype=torch.uint8, device=card.device))
            teller.placed(f"blocks.{at}", size * MIB, "resident")
    lines = table(Trace(recorder.header(), tuple(recorder.events())))
    now = card.read()
    assert recorder.live_bytes == now.allocated == 2090 * MIB
    assert len(lines) == 9
    if kind == "async":  # as it was reported: 64, 32, 32, 32 for blocks of 40 MiB
        grew = [line.partition("(+")[2].partition(")")[0] for line in lines[3:7]]
        assert grew == ["64.0 MiB", "32.0 MiB", "32.0 MiB", "32.0 MiB"]
        assert "it grew with transformer: blocks.3 (+24.0 MiB)" in lines[-1]
    assert card.allocator == kind


def test_l06_a_job_gives_the_same_with_a_trace_as_without() -> None:
    """To look does not change what is looked at: bits, peaks and rungs."""
    vae, source = toy_vae("V3", width=8), torch.rand(1, 3, 9, 64, 64) * 2 - 1
    plain = run_checked(
        Job(vae, "encode", virtual("64MiB,allocator=async"), Request(64 * MIB)), source
    )
    card = virtual("64MiB,allocator=async")
    job = Job(vae, "encode", card, Request(64 * MIB), recorder=Recorder(fine=True))
    traced = run_checked(job, source, plain.value, tolerance=0)
    assert traced.peak_reserved_bytes == plain.peak_reserved_bytes
    assert [a.rung for a in traced.attempts] == [a.rung for a in plain.attempts]
    assert job.recorder.peak_allocated == traced.peak_bytes


def test_l06_the_host_card_says_so_too() -> None:
    """Its allocator keeps no books at all."""
    recorder = Recorder(fine=True)
    with moves_told(open_card("cpu"), recorder):
        kept = torch.zeros(1000)
    assert recorder.live_bytes == kept.nbytes
    assert recorder.counts["unseen"] == 1
