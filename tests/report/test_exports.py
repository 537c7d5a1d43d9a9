"""The formats of other programs: they can read what we write, and the figures are the trace's."""

from __future__ import annotations

import csv
import io
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.cuda import _memory_viz

from tests.report.made import MIB, placed, trace
from tightfit.errors import InputError
from tightfit.report.exports.snapshot import as_snapshot
from tightfit.report.exports.tables import as_csv, as_json
from tightfit.report.exports.timeline import as_timeline
from tightfit.report.trace_file import Trace

Event = dict[str, Any]


def move(kind: str, size: int, **more: Any) -> Event:
    return {"event": kind, "bytes": size, **more}


RUN = trace(
    move("reserve", 4 * MIB),
    move("allocate", MIB, by="my.model:12 Block.forward"),
    move("allocate", 2 * MIB),
    move("free", MIB),
    move("reserve", 2 * MIB),
    move("allocate", 2 * MIB, by="my.model:13 Block.forward"),
    {"event": "oom", "stage": "decode", "rung": "whole", "text": "full"},
)


def loaded(told: Trace) -> Any:
    return pickle.loads(as_snapshot(told))


def live(snapshot: Any) -> dict[int, int]:
    """Address → size of what is in use at the end."""
    return {
        block["address"]: block["size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def test_pytorchs_viewer_reads_a_snapshot() -> None:
    """Its own functions, on the pickle: the page, the table of segments, and the trace in words."""
    snapshot = loaded(RUN)
    assert "snapshot.pickle" in _memory_viz.trace_plot(snapshot)
    assert "snapshot.pickle" in _memory_viz.trace_plot(snapshot, plot_segments=True)
    assert "snapshot.pickle" in _memory_viz.segment_plot(snapshot)
    assert "total_reserved: 6.0MiB" in _memory_viz.segsum(snapshot)
    words = _memory_viz.trace(snapshot)
    assert "cudaMalloc" in words
    assert "OutOfMemoryError" in words
    assert "Block.forward" in _memory_viz.segments(snapshot, format_flamegraph=str)
    kept = _memory_viz.filter_alloc_free_pairs(loaded(RUN))["device_traces"][0]
    assert sum(entry["action"] == "alloc" for entry in kept) == 2


def test_a_snapshot_has_what_is_left_at_the_end() -> None:
    """Two of three allocations, within what was reserved."""
    snapshot = loaded(RUN)
    assert sorted(live(snapshot).values()) == [2 * MIB, 2 * MIB]
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == 6 * MIB
    frames = [e["frames"] for e in snapshot["device_traces"][0] if e["action"] == "alloc"]
    assert frames[0] == [{"filename": "my.model", "line": 12, "name": "Block.forward"}]


def test_addresses_of_the_trace_are_kept() -> None:
    """Those of the native allocator's history."""
    told = trace(
        move("reserve", 20 * MIB, address=7 << 30),
        move("allocate", MIB, address=(7 << 30) + 512),
        move("free", 5, address=1),
    )
    snapshot = loaded(told)
    assert live(snapshot) == {(7 << 30) + 512: MIB}
    assert [segment["address"] for segment in snapshot["segments"]] == [7 << 30]


@given(st.lists(st.integers(1, 5), max_size=60), st.randoms())
def test_no_two_live_allocations_overlap(sizes: list[int], random: Any) -> None:
    """Whatever comes and goes, with or without the reserve before it; blocks tile segments."""
    events: list[Event] = []
    there: list[int] = []
    for size in sizes:
        if there and random.random() < 0.4:
            events.append(move("free", there.pop(random.randrange(len(there)))))
        if random.random() < 0.7:
            events.append(move("reserve", size * 512))
        events.append(move("allocate", size * 512))
        there.append(size * 512)
    if not events:
        return
    snapshot = loaded(trace(*events))
    assert sorted(live(snapshot).values()) == sorted(there)
    end = 0
    for segment in snapshot["segments"]:
        assert segment["address"] >= end
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        end = segment["address"] + segment["total_size"]
        assert at == end
        assert segment["allocated_size"] == sum(
            block["size"] for block in segment["blocks"] if block["state"] != "inactive"
        )


def test_several_frees_told_as_one_end_several_allocations() -> None:
    """As a card tells of frees that counted late."""
    told = trace(move("allocate", MIB), move("allocate", 2 * MIB), move("free", 3 * MIB))
    assert live(loaded(told)) == {}


def test_a_coarse_trace_is_refused_for_a_snapshot() -> None:
    """With what to do."""
    with pytest.raises(InputError, match="--trace"):
        as_snapshot(trace(placed(0, 1, 1, 1)))


STEP = {
    "event": "streamed_step",
    "network": "transformer",
    "start": 10.0,
    "seconds": 0.5,
    "limit_seconds": 0.4,
    "times_limit": 1.25,
    "moved_bytes": 7,
    "stall_ms": 100.0,
    "blocks": [
        {
            "name": "blocks.1",
            "moved_bytes": 7,
            "copy_start": -0.1,
            "copy_end": 0.2,
            "reached": 0.1,
            "start": 0.2,
            "end": 0.5,
        },
        {
            "name": "blocks.2",
            "moved_bytes": 0,
            "copy_start": None,
            "copy_end": None,
            "reached": 0.5,
            "start": 0.5,
            "end": None,
        },
    ],
}
JOB = trace(
    {"event": "stage", "stage": "denoise"},
    {"event": "memory", "allocated_bytes": 5, "reserved_bytes": 6},
    STEP,
    {"event": "wait", "reason": "room", "seconds": 0.5},
    {"event": "stage", "stage": "decode"},
    {"event": "attempt", "stage": "decode", "rung": "whole", "held_bytes": 5},
    {"event": "oom", "stage": "decode", "rung": "whole", "text": "full"},
    {"event": "others", "bytes": 9},
)


def test_a_timeline_has_copies_waits_and_computes_on_tracks_of_their_own() -> None:
    """Microseconds from the start of the trace; a copy may begin in the step before."""
    lines = json.loads(as_timeline(JOB))["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in lines if e["name"] == "thread_name"}
    spans = {(tracks[e["tid"]], e["name"]): (e["ts"], e["dur"]) for e in lines if e["ph"] == "X"}
    assert spans["transformer: copies", "blocks.1"] == (9.9e6, 0.3e6)
    assert spans["transformer: waits", "blocks.1"] == (10.1e6, 0.1e6)
    assert spans["transformer: computes", "blocks.1"] == (10.2e6, 0.3e6)
    assert spans["transformer: steps", "step"] == (10e6, 0.5e6)
    assert spans["waits", "room"] == (2.5e6, 0.5e6)
    assert spans["stages", "denoise"] == (0.0, 4e6)
    assert spans["stages", "decode"] == (4e6, 3e6)
    assert spans["rungs", "decode: whole"] == (5e6, 1e6)
    assert not any(name == "blocks.2" and track.endswith("copies") for track, name in spans)
    counters = [e["args"] for e in lines if e["ph"] == "C"]
    assert counters == [{"allocated_bytes": 5, "reserved_bytes": 6}, {"bytes": 9}]


def test_every_line_of_a_timeline_has_what_the_format_asks_for() -> None:
    """Phase, name, process; a time and a duration that is not negative."""
    for line in json.loads(as_timeline(JOB))["traceEvents"]:
        assert {"ph", "name", "pid"} <= set(line)
        assert line["ph"] == "M" or line["ts"] >= 0
        assert line["ph"] != "X" or line["dur"] >= 0


def test_a_table_has_every_figure_of_every_event() -> None:
    """Nested ones as JSON, unknown ones as empty cells."""
    rows = list(csv.DictReader(io.StringIO(as_csv(JOB))))
    assert [row["event"] for row in rows] == [event["event"] for event in JOB.events]
    assert json.loads(rows[2]["blocks"]) == STEP["blocks"]
    assert rows[1]["allocated_bytes"] == "5"
    assert rows[0]["allocated_bytes"] == ""


def test_json_is_all_of_the_trace() -> None:
    """And the rows of the table of modules."""
    told = trace(placed(0, 40, 64, 40), versions={"torch": "2"})
    everything = json.loads(as_json(told))
    assert everything["header"]["versions"] == {"torch": "2"}
    assert everything["events"] == list(told.events)
    assert everything["modules"][0]["loosened"] == 24 * MIB
