"""Reading traces: whole, cut off, old, later, and out-of-memory logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tightfit.errors import InputError
from tightfit.report.trace_file import read_trace

HEADER = {"tightfit_trace": 2, "dropped": 3, "peak_allocated_bytes": 90, "peak_reserved_bytes": 99}
EVENTS = [
    {"t": 0.0, "event": "attempt", "stage": "encode", "rung": "whole", "held_bytes": 5},
    {"t": 0.1, "event": "memory", "allocated_bytes": 80, "reserved_bytes": 85},
]


def written(path: Path, *lines: Any, tail: str = "") -> Path:
    """A file of these lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail, encoding="utf-8")
    return path


def test_a_trace_is_its_header_and_its_events(tmp_path: Path) -> None:
    """In order, with the figures that hold whatever was dropped."""
    trace = read_trace(written(tmp_path / "t.jsonl", HEADER, *EVENTS))
    assert trace.events == tuple(EVENTS)
    assert (trace.dropped, trace.peak_allocated_bytes, trace.peak_reserved_bytes) == (3, 90, 99)
    assert not trace.truncated
    assert [event["rung"] for event in trace.of("attempt")] == ["whole"]


@pytest.mark.parametrize("tail", ['{"t": 0.2, "eve', '{"t": 0.2', '"', "{}"])
def test_a_last_line_that_is_cut_off_is_left_out_and_said(tmp_path: Path, tail: str) -> None:
    """A killed process leaves one; all before it counts."""
    trace = read_trace(written(tmp_path / "t.jsonl", HEADER, *EVENTS, tail=tail))
    assert trace.truncated
    assert trace.events == tuple(EVENTS)


def test_a_trace_cut_at_any_byte_is_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    """Never another error, and never an event that was not written."""
    path = written(tmp_path / "t.jsonl", HEADER, *EVENTS)
    whole = path.read_bytes()
    header = len(json.dumps(HEADER))
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        if end < header:
            with pytest.raises(InputError, match="no trace"):
                read_trace(path)
            continue
        trace = read_trace(path)
        assert trace.events == tuple(EVENTS[: len(trace.events)])


def test_a_line_in_the_middle_that_is_no_event_is_named(tmp_path: Path) -> None:
    """Damage is not passed over in silence."""
    with pytest.raises(InputError, match="line 2 is no event"):
        read_trace(written(tmp_path / "t.jsonl", HEADER, ["?"], *EVENTS))


def test_version_one_is_read(tmp_path: Path) -> None:
    """Files that were written before."""
    assert read_trace(written(tmp_path / "t.jsonl", HEADER | {"tightfit_trace": 1})).events == ()


@pytest.mark.parametrize("version", [3, 0, "2", None])
def test_other_versions_are_refused(tmp_path: Path, version: object) -> None:
    """With what to do."""
    with pytest.raises(InputError, match="this tightfit reads 1 to 2"):
        read_trace(written(tmp_path / "t.jsonl", HEADER | {"tightfit_trace": version}))


@pytest.mark.parametrize("content", [b"", b"hello\n", b"[1]\n", b"\xff\xfe", b'{"version": 1}'])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    """By name."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"t\.jsonl"):
        read_trace(path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    """By name, with the reason."""
    with pytest.raises(InputError, match="No such file"):
        read_trace(tmp_path / "none.jsonl")


def test_peaks_that_no_header_tells_come_from_the_samples(tmp_path: Path) -> None:
    """The file of a job that still runs has none yet."""
    trace = read_trace(written(tmp_path / "t.jsonl", {"tightfit_trace": 2}, *EVENTS))
    assert (trace.peak_allocated_bytes, trace.peak_reserved_bytes) == (80, 85)


def test_an_out_of_memory_log_is_a_trace_too(tmp_path: Path) -> None:
    """Its header is the rest of it, also where it is indented."""
    path = tmp_path / "out.oom.json"
    path.write_text(json.dumps({"tightfit_oom": 1, "dropped": 7, "events": EVENTS}, indent=1))
    trace = read_trace(path)
    assert trace.is_oom
    assert (trace.events, trace.dropped, trace.peak_allocated_bytes) == (tuple(EVENTS), 7, 80)
