"""Events of a job as they happen, bounded, and written as JSON lines."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

TRACE_VERSION = 1
_LIMIT = 200_000
_GRAIN = 512  # a memory sample is kept when it moved by 1/512 of the peak


class Recorder:
    """Keeps the newest events, counts the dropped ones, and keeps the peaks exact.

    Attributes:
        peak_allocated: highest bytes in live tensors that were told.
        peak_reserved: likewise for reserved bytes.
        dropped: events that no longer fit.
    """

    def __init__(self, *, limit: int = _LIMIT) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=limit)
        self._start = time.perf_counter()
        self._last = 0
        # Reentrant: a collection that strikes in here frees tensors, and `memory` is told of it.
        self._lock = threading.RLock()
        self.peak_allocated = 0
        self.peak_reserved = 0
        self.dropped = 0

    def event(self, kind: str, **figures: Any) -> None:
        """Write down that `kind` happened; figures are JSON values, sizes in bytes."""
        with self._lock:
            self._append({"t": self._now(), "event": kind, **figures})

    def memory(self, allocated: int, reserved: int) -> None:
        """A look at memory in bytes; small moves are folded into the next sample."""
        with self._lock:
            rising = allocated > self.peak_allocated
            self.peak_allocated = max(self.peak_allocated, allocated)
            self.peak_reserved = max(self.peak_reserved, reserved)
            if not rising and abs(allocated - self._last) * _GRAIN < self.peak_allocated:
                return
            self._last = allocated
            self._append(
                {
                    "t": self._now(),
                    "event": "memory",
                    "allocated_bytes": allocated,
                    "reserved_bytes": reserved,
                }
            )

    def events(self) -> list[dict[str, Any]]:
        """All events that are kept, oldest first; `t` is in seconds since the start."""
        with self._lock:
            return list(self._events)

    def header(self) -> dict[str, Any]:
        """The first line of a trace file."""
        return {
            "tightfit_trace": TRACE_VERSION,
            "dropped": self.dropped,
            "peak_allocated_bytes": self.peak_allocated,
            "peak_reserved_bytes": self.peak_reserved,
        }

    def write(self, path: Path) -> None:
        """Write the trace to `path`; the caller sees to it that the file is whole or absent."""
        lines = [self.header(), *self.events()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def _append(self, event: dict[str, Any]) -> None:
        if len(self._events) == self._events.maxlen:
            self.dropped += 1
        self._events.append(event)

    def _now(self) -> float:
        return round(time.perf_counter() - self._start, 6)
