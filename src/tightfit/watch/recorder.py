"""Events of a job as they happen, bounded, and written as JSON lines."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.watch.about import versions
from tightfit.watch.events import Allocate, Event, Free, Memory
from tightfit.watch.live import live

if TYPE_CHECKING:
    from tightfit.card.base import Card

TRACE_VERSION = 2
_LIMIT = 200_000
_GRAIN = 512  # a memory sample is kept when it moved by 1/512 of the peak
_ASKEW = 0.1  # seconds that two clocks may differ by
_MANY = frozenset(("memory", "allocate", "free", "reserve", "release", "tile", "wait"))
"""Kinds of which there are very many: they have a ring of their own, and push out no others."""

_Kept = tuple[int, float, Event | dict[str, Any]]
"""Its number, the second it happened at, and what happened."""


class Recorder:
    """Keeps the newest events, counts the dropped ones, and keeps peaks and totals exact.

    There are two rings of `limit` events: one for looks at memory and moves of the allocator, and
    one for everything else, which thousands of allocations must not push out.

    Attributes:
        fine: every single move of the allocator is wanted, too; whoever works looks here first.
        peak_allocated: highest bytes in live tensors that were told.
        peak_reserved: likewise for reserved bytes.
        dropped: events that no longer fit.
        counts: how many events of each kind there were, dropped ones included.
        allocated_bytes, freed_bytes: in all `allocate` and `free` events, dropped ones included.
        hears_moves: somebody tells every move just now; whoever else would need not.
        seen: allocated and reserved bytes of the card when that last ended.
        about: what the header says beside versions and figures: the card.
    """

    def __init__(self, *, limit: int = _LIMIT, fine: bool = False) -> None:
        self.fine = fine
        self._many: deque[_Kept] = deque(maxlen=limit)
        self._few: deque[_Kept] = deque(maxlen=limit)
        self._start = time.perf_counter()
        self._began = time.time()
        self._last = 0
        self._number = 0
        # Reentrant: a collection that strikes in here frees tensors, and `memory` is told of it.
        self._lock = threading.RLock()
        self.peak_allocated = 0
        self.peak_reserved = 0
        self.dropped = 0
        self.counts: Counter[str] = Counter()
        self.allocated_bytes = 0
        self.freed_bytes = 0
        self.hears_moves = False
        self.seen = (0, 0)
        self._live = live()
        self.about: dict[str, Any] = {}

    @property
    def live_bytes(self) -> int:
        """Allocated less freed, by all `allocate` and `free` events there ever were."""
        return self.allocated_bytes - self.freed_bytes

    @property
    def whole(self) -> Recorder:
        """Where all events of the job are: here, unless it tells another one."""
        return self

    def event(self, kind: str, **figures: Any) -> None:
        """Write down that `kind` happened; figures are JSON values, sizes in bytes."""
        with self._lock:
            self._append(kind, {"event": kind, **figures}, self._now())

    def tell(self, event: Event, *, at: float | None = None) -> None:
        """Write down `event`; `at` is when it happened, in seconds of `now`, by default now."""
        with self._lock:
            if isinstance(event, Allocate):
                self.allocated_bytes += event.bytes
            elif isinstance(event, Free):
                self.freed_bytes += event.bytes
            self._append(event.kind, event, self._now() if at is None else round(at, 6))

    def peaks(self, allocated: int | None, reserved: int | None) -> None:
        """The highest that a card has counted since somebody began to watch it, in bytes."""
        with self._lock:
            self.peak_allocated = max(self.peak_allocated, allocated or 0)
            self.peak_reserved = max(self.peak_reserved, reserved or 0)

    def memory(self, allocated: int, reserved: int) -> None:
        """A look at memory in bytes; small moves are folded into the next sample."""
        with self._lock:
            rising = allocated > self.peak_allocated
            self.peak_allocated = max(self.peak_allocated, allocated)
            self.peak_reserved = max(self.peak_reserved, reserved)
            if not rising and abs(allocated - self._last) * _GRAIN < self.peak_allocated:
                return
            self._last = allocated
            self._append("memory", Memory(allocated, reserved), self._now())

    def events(self) -> list[dict[str, Any]]:
        """All events that are kept, oldest first; `t` is in seconds of `now`."""
        with self._lock:
            kept = [*self._many, *self._few]
        kept.sort(key=_when)
        return [_line(at, what) for _, at, what in kept]

    def newest(self, count: int) -> list[dict[str, Any]]:
        """The last so many of `events`."""
        with self._lock:
            kept = [*_last(self._many, count), *_last(self._few, count)]
        kept.sort(key=_when)
        return [_line(at, what) for _, at, what in kept[-count:]]

    def now(self) -> float:
        """Seconds since the recorder began."""
        return self._now()

    def at_epoch(self, seconds: float) -> float | None:
        """The second of `now` that a clock of the day, in seconds since 1970, stands for.

        None for one that is not between the beginning and now.
        """
        at = seconds - self._began
        return round(at, 6) if 0 <= at <= self._now() + _ASKEW else None

    def on(self, card: Card) -> None:
        """It is this card that is told of: its name stands in the header."""
        if "card" in self.about:
            return
        self.about["card"] = {
            "name": card.name,
            "kind": card.kind,
            "allocator": card.allocator,
            "total_bytes": card.read().total,
        }

    def header(self) -> dict[str, Any]:
        """The first line of a trace file."""
        with self._lock:
            return {
                "tightfit_trace": TRACE_VERSION,
                "versions": versions(),
                **self.about,
                "level": "fine" if self.fine else "coarse",
                "dropped": self.dropped,
                "counts": dict(sorted(self.counts.items())),
                "peak_allocated_bytes": self.peak_allocated,
                "peak_reserved_bytes": self.peak_reserved,
                "allocated_bytes": self.allocated_bytes,
                "freed_bytes": self.freed_bytes,
            }

    def lines(self) -> Iterator[str]:
        """The lines of a trace file."""
        for line in (self.header(), *self.events()):
            yield json.dumps(line, separators=(",", ":"), default=str)

    def write(self, path: Path) -> None:
        """Write the trace to `path`; the caller sees to it that the file is whole or absent."""
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in self.lines())

    def _append(self, kind: str, what: Event | dict[str, Any], at: float) -> None:
        ring = self._many if kind in _MANY else self._few
        if len(ring) == ring.maxlen:
            self.dropped += 1
        self._number += 1
        ring.append((self._number, at, what))
        self.counts[kind] += 1
        if self._live is not None:
            self._live.tell(kind, _line(at, what))

    def _now(self) -> float:
        return round(time.perf_counter() - self._start, 6)


def _line(at: float, what: Event | Mapping[str, Any]) -> dict[str, Any]:
    return {"t": at, **(what.as_line() if isinstance(what, Event) else what)}


def _when(kept: _Kept) -> tuple[float, int]:
    """What an allocator's history tells comes later than it happened."""
    return kept[1], kept[0]


def _last(ring: deque[_Kept], count: int) -> list[_Kept]:
    at = max(0, len(ring) - count)
    return [ring[index] for index in range(at, len(ring))]
