"""What real runs taught about a stage: measured against predicted, kept in a small file. No torch.

One size gives a factor; two sizes that agree make it "calibrated".
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tightfit import kept

AGREE = 0.03
"""Two sizes agree when the line through the others is this near to each."""
_POINTS = 6
_LIMIT = 300
_LEAST, _MOST = 0.5, 16.0
_APART = 1.5
"""So many times the smallest must the largest be for a line through both to tell others."""
VERSION = 2
"""Of the file; also to be raised when the same run is predicted in another way than before."""


@dataclass(frozen=True)
class Key:
    """What a figure holds for; convolution libraries choose other kernels in other versions."""

    model: str
    stage: str
    dtype: str
    device: str
    torch: str
    convolutions: str = ""

    def __str__(self) -> str:
        return "|".join(
            (self.model, self.stage, self.dtype, self.device, self.torch, self.convolutions)
        )


@dataclass(frozen=True)
class Seen:
    """One real run, in bytes beyond weights and input."""

    samples: int
    predicted: int
    measured: int


@dataclass(frozen=True)
class Calibration:
    """Everything learnt for one key.

    Attributes:
        seen: the latest runs, one for each size, newest last.
        shares: scratch per byte by operator; see `weigh.observed`.
    """

    seen: tuple[Seen, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def calibrated(self) -> bool:
        """Whether a second size agrees with the first."""
        sizes = {run.samples for run in self.seen}
        if len(sizes) < 2:
            return False
        return all(
            abs(self.without(run).corrected(run.predicted) / run.measured - 1) <= AGREE
            for run in self.seen[-2:]
        )

    @property
    def source(self) -> str:
        """How much is behind it, in words."""
        if not self.seen:
            return "not calibrated"
        if self.calibrated:
            return f"calibrated on {len(self.seen)} sizes"
        return "one real run" if len(self.seen) == 1 else f"{len(self.seen)} real runs"

    def corrected(self, predicted: int) -> int:
        """A prediction, moved by what was measured; never falls as the prediction grows.

        One size gives a factor. Between two sizes it is the line from one to the other, and above
        the largest the line from the smallest through it: then what is fixed is told from what
        grows. No factor is believed outside 0.5 to 16.
        """
        points = self._points()
        if not points:
            return predicted
        at = bisect_left(points, (predicted, 0))
        (first, least), (last, most) = points[0], points[-1]
        if at == 0:
            return int(predicted * least / first)
        if at < len(points):
            (below, low), (above, high) = points[at - 1], points[at]
            return int(low + (high - low) * (predicted - below) / (above - below))
        slope = most / last if last < _APART * first else (most - least) / (last - first)
        return int(most + min(_MOST, max(_LEAST, slope)) * (predicted - last))

    def _points(self) -> list[tuple[int, float]]:
        """(predicted, measured) in rising order, in which what is measured does not fall."""
        latest = {run.predicted: run.measured for run in self.seen}
        points: list[tuple[int, float]] = []
        for predicted, measured in sorted(latest.items()):
            believed = min(_MOST * predicted, max(_LEAST * predicted, float(measured)))
            points.append((predicted, max(believed, points[-1][1] if points else 0.0)))
        return points

    def with_run(self, run: Seen) -> Calibration:
        """One run more; an older one of the same size goes."""
        others = [one for one in self.seen if one.samples != run.samples]
        return replace(self, seen=(*others, run)[-_POINTS:])

    def with_shares(self, shares: Mapping[str, float]) -> Calibration:
        """Scratch that was watched; runs predicted without it no longer count."""
        return Calibration((), dict(shares))

    def without(self, run: Seen) -> Calibration:
        """As if `run` had not been."""
        return replace(self, seen=tuple(one for one in self.seen if one != run))


class Calibrations:
    """All calibrations of this user: in `path`, or without one in this object alone.

    A file that cannot be read or written is as good as none: figures are then learnt anew.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries: dict[str, Any] = {}
        self._lock = threading.Lock()

    def of(self, key: Key) -> Calibration:
        """What is known; an empty calibration where nothing is."""
        return _parsed(self._read().get(str(key)))

    def keep(self, key: Key, calibration: Calibration) -> None:
        """Write it down in place of what was known, beside what others wrote meanwhile."""
        with self._turn():
            self._put(key, calibration)

    def add(self, key: Key, runs: Iterable[Seen], *, shares: Mapping[str, float]) -> None:
        """Real runs more, which were predicted with `shares`; what others added meanwhile stays.

        They do not count where other scratch was watched meanwhile.
        """
        with self._turn():
            known = self.of(key)
            if known.shares == shares:
                for run in runs:
                    known = known.with_run(run)
                self._put(key, known)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._lock, nullcontext() if self._path is None else kept.turn(self._path):
            yield

    def _put(self, key: Key, calibration: Calibration) -> None:
        entries = self._read()
        entries.pop(str(key), None)
        entries[str(key)] = {
            "seen": [[run.samples, run.predicted, run.measured] for run in calibration.seen],
            "shares": dict(calibration.shares),
        }
        while len(entries) > _LIMIT:
            entries.pop(next(iter(entries)))
        self._entries = entries
        if self._path is not None:
            kept.write(self._path, {"version": VERSION, "entries": entries})

    def _read(self) -> dict[str, Any]:
        if self._path is None:
            return dict(self._entries)
        stored = kept.read(self._path)
        if isinstance(stored, dict) and stored.get("version") == VERSION:
            entries = stored.get("entries")
            return entries if isinstance(entries, dict) else {}
        return {}


def _parsed(entry: Any) -> Calibration:
    """An entry of the file; one that is damaged is as good as none."""
    with suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError):
        seen = tuple(Seen(int(a), int(b), int(c)) for a, b, c in entry["seen"])
        shares = {str(name): float(share) for name, share in entry["shares"].items()}
        sound = all(math.isfinite(share) and share >= 0 for share in shares.values())
        if sound and all(run.predicted > 0 and run.measured > 0 for run in seen):
            return Calibration(seen, shares)
    return Calibration()
