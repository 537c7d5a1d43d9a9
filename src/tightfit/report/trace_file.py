"""Reads a trace, or the log of a job that ran out of memory: a header and events, as they stand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.errors import InputError

NEWEST = 2
"""The version of traces that is written now; all before it are read."""
NEWEST_OOM = 1


@dataclass(frozen=True)
class Trace:
    """What was written down of a job.

    Attributes:
        header: the first line of the file; of an out-of-memory log, all of it but its events.
        events: in the order they happened in; each has `t` in seconds, and `event`, its kind.
        dropped: events that there was no room for.
        peak_allocated_bytes, peak_reserved_bytes: exact, whatever was dropped; None is not known.
        truncated: the last line is cut off, and was left out.
    """

    header: dict[str, Any]
    events: tuple[dict[str, Any], ...]
    dropped: int = 0
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    truncated: bool = False

    @property
    def is_oom(self) -> bool:
        """Whether it is the log of a job that memory ended."""
        return "tightfit_oom" in self.header

    def of(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """The events of these kinds, in order."""
        return (event for event in self.events if event["event"] in kinds)


def read_trace(path: Path) -> Trace:
    """Read a trace (JSON lines) or an out-of-memory log (one JSON object).

    A last line that is cut off, as a process that was killed leaves it, is left out, and the trace
    says so. Raises `InputError` for a file that is not there, is neither, or is of a later version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Cannot read {path}: {_reason(error)}.") from error
    return _of_log(path, text) or _of_lines(path, text)


def _of_log(path: Path, text: str) -> Trace | None:
    """None where it is no out-of-memory log."""
    try:
        log = json.loads(text)
    except ValueError:
        return None
    if not isinstance(log, dict) or "tightfit_oom" not in log:
        return None
    _refuse_later(path, log["tightfit_oom"], NEWEST_OOM, "out-of-memory log")
    events = log.pop("events", [])
    if not isinstance(events, list) or not all(map(_is_event, events)):
        raise InputError(f"{path} is an out-of-memory log, but its `events` are none.")
    return _trace(log, events, truncated=False)


def _of_lines(path: Path, text: str) -> Trace:
    lines = text.split("\n")
    header = _parsed(lines[0])
    if not isinstance(header, dict) or "tightfit_trace" not in header:
        raise InputError(
            f"{path} is no trace of tightfit: its first line does not say `tightfit_trace`. "
            "Write one with --trace."
        )
    _refuse_later(path, header["tightfit_trace"], NEWEST, "trace")
    events: list[dict[str, Any]] = []
    last = max((at for at, line in enumerate(lines) if line.strip()), default=0)
    for at, line in enumerate(lines[1:], start=1):
        if not line.strip():
            continue
        event = _parsed(line)
        if not _is_event(event):
            if at == last:
                return _trace(header, events, truncated=True)
            raise InputError(f"{path}: line {at + 1} is no event.")
        events.append(event)
    return _trace(header, events, truncated=False)


def _trace(header: dict[str, Any], events: list[dict[str, Any]], *, truncated: bool) -> Trace:
    return Trace(
        header,
        tuple(events),
        header.get("dropped") or 0,
        _peak(header, events, "allocated_bytes"),
        _peak(header, events, "reserved_bytes"),
        truncated,
    )


def _peak(header: Mapping[str, Any], events: list[dict[str, Any]], figure: str) -> int | None:
    """As the header has it; of an old or a live file without one, as its samples have it."""
    known = header.get(f"peak_{figure}")
    if known is not None:
        return int(known)
    seen = [event[figure] for event in events if event["event"] == "memory"]
    return max((int(size) for size in seen if size is not None), default=None)


def _refuse_later(path: Path, version: object, newest: int, what: str) -> None:
    if not isinstance(version, int) or not 1 <= version <= newest:
        raise InputError(
            f"{path} is a {what} of version {version}; this tightfit reads 1 to {newest}: "
            "use the one that wrote it, or a newer one."
        )


def _is_event(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("event"), str) and "t" in value


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
