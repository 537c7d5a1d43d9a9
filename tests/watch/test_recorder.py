"""Writing down what happened: bounded, exact at the peaks, whole on disk."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tightfit.card import open_card
from tightfit.report.trace_file import read_trace
from tightfit.units import MIB
from tightfit.watch import Recorder
from tightfit.watch.events import Allocate


def test_events_are_kept_in_order_with_their_times() -> None:
    """Oldest first; times never run backwards."""
    recorder = Recorder()
    recorder.event("attempt", rung="whole", held_bytes=5)
    recorder.event("oom", text="full")
    first, second = recorder.events()
    assert (first["event"], first["rung"], first["held_bytes"]) == ("attempt", "whole", 5)
    assert second["event"] == "oom"
    assert 0 <= first["t"] <= second["t"]


def test_the_newest_events_are_kept_and_the_dropped_ones_counted() -> None:
    """A cap of 100 after 1000 events: the last 100, and 900 dropped."""
    recorder = Recorder(limit=100)
    for at in range(1000):
        recorder.event("tick", at=at)
    assert [event["at"] for event in recorder.events()] == list(range(900, 1000))
    assert recorder.dropped == 900
    assert recorder.header()["dropped"] == 900


def test_peaks_are_exact_also_when_samples_are_folded_or_dropped() -> None:
    """Small moves share a sample; the highest figures are kept to the byte."""
    recorder = Recorder(limit=3)
    for size in (100 * MIB, 100 * MIB + 1, 100 * MIB - 1, 0, 5, 50 * MIB, 0, 50 * MIB):
        recorder.memory(size, size + 7)
    assert (recorder.peak_allocated, recorder.peak_reserved) == (100 * MIB + 1, 100 * MIB + 8)
    assert len(recorder.events()) == 3


def test_small_moves_are_folded() -> None:
    """A thousand moves of a byte do not make a thousand samples."""
    recorder = Recorder()
    recorder.memory(100 * MIB, 100 * MIB)
    for at in range(1000):
        recorder.memory(100 * MIB - at % 2, 100 * MIB)
    assert len(recorder.events()) == 1


def test_a_new_peak_is_always_a_sample() -> None:
    """However small the step up."""
    recorder = Recorder()
    recorder.memory(100 * MIB, 0)
    recorder.memory(100 * MIB + 1, 0)
    assert [event["allocated_bytes"] for event in recorder.events()][-1] == 100 * MIB + 1


def test_a_trace_is_json_lines_that_begin_with_the_version(tmp_path: Path) -> None:
    """Each line stands for itself."""
    recorder = Recorder()
    recorder.event("end", held_bytes=0)
    path = tmp_path / "trace.jsonl"
    recorder.write(path)
    header, event = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert header["tightfit_trace"] == 2
    assert event["event"] == "end"


def test_many_threads_write_whole_events() -> None:
    """Nothing is lost between them."""
    recorder = Recorder()

    def work() -> None:
        for _ in range(200):
            recorder.event("tick")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recorder.events()) == 800


def test_a_free_that_a_collection_causes_in_here_does_not_wait_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory may be told from within `event`, in the same thread."""
    recorder = Recorder()
    now = recorder._now

    def collecting() -> float:
        monkeypatch.setattr(recorder, "_now", now)
        recorder.memory(5, 5)
        return now()

    monkeypatch.setattr(recorder, "_now", collecting)
    thread = threading.Thread(target=lambda: recorder.event("tick"), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert {event["event"] for event in recorder.events()} == {"tick", "memory"}


def test_many_moves_push_out_no_events_of_other_kinds() -> None:
    """What happened is still there after a hundred thousand allocations."""
    recorder = Recorder(limit=10)
    recorder.event("attempt", rung="whole")
    for _ in range(1000):
        recorder.tell(Allocate(1))
    recorder.event("oom", text="full")
    told = [event["event"] for event in recorder.events()]
    assert told == ["attempt", *["allocate"] * 10, "oom"]
    assert [event["event"] for event in recorder.newest(2)] == ["allocate", "oom"]
    assert recorder.dropped == 990


def test_what_is_told_late_stands_where_it_happened() -> None:
    """An allocator's history comes after the block that it is of."""
    recorder = Recorder()
    recorder.tell(Allocate(1), at=2.0)
    recorder.tell(Allocate(2), at=1.0)
    assert [event["bytes"] for event in recorder.events()] == [2, 1]


def test_the_header_says_what_took_part(tmp_path: Path) -> None:
    """Versions, the card, the level, and how many events of each kind."""
    recorder = Recorder(fine=True)
    recorder.on(open_card("virtual:64MiB,allocator=native"))
    recorder.on(open_card("virtual:1MiB"))
    recorder.event("tick")
    path = tmp_path / "trace.jsonl"
    recorder.write(path)
    trace = read_trace(path)
    assert trace.header["card"]["allocator"] == "native"
    assert {"python", "torch", "tightfit"} <= set(trace.header["versions"])
    assert trace.header["level"] == "fine"
    assert trace.header["counts"] == {"tick": 1}
