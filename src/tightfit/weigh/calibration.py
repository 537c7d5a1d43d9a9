"""What real runs taught about a stage: measured against predicted, kept in a small file. No torch.

One size gives a factor; two sizes that agree make it "calibrated".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

AGREE = 0.03
"""Two sizes agree when the line through the others is this near to each."""
_POINTS = 6
_LIMIT = 300
_LEAST, _MOST = 0.5, 16.0
VERSION = 1


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
        """A prediction, scaled by what was measured at the nearest size."""
        if not self.seen:
            return predicted
        nearest = min(self.seen, key=lambda run: abs(run.predicted - predicted))
        factor = nearest.measured / max(1, nearest.predicted)
        return int(predicted * min(_MOST, max(_LEAST, factor)))

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

    def of(self, key: Key) -> Calibration:
        """What is known; an empty calibration where nothing is."""
        return _parsed(self._read().get(str(key)))

    def keep(self, key: Key, calibration: Calibration) -> None:
        """Write it down beside what other processes wrote meanwhile."""
        entries = self._read()
        entries.pop(str(key), None)
        entries[str(key)] = {
            "seen": [[run.samples, run.predicted, run.measured] for run in calibration.seen],
            "shares": dict(calibration.shares),
        }
        while len(entries) > _LIMIT:
            entries.pop(next(iter(entries)))
        if self._path is None:
            self._entries = entries
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part = self._path.with_suffix(".part")
            part.write_text(json.dumps({"version": VERSION, "entries": entries}), encoding="utf-8")
            part.replace(self._path)

    def _read(self) -> dict[str, Any]:
        if self._path is None:
            return dict(self._entries)
        with suppress(OSError, ValueError):
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            if isinstance(stored, dict) and stored.get("version") == VERSION:
                entries = stored.get("entries")
                return entries if isinstance(entries, dict) else {}
        return {}


def _parsed(entry: Any) -> Calibration:
    """An entry of the file; one that is damaged is as good as none."""
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        seen = tuple(Seen(int(a), int(b), int(c)) for a, b, c in entry["seen"])
        shares = {str(name): float(share) for name, share in entry["shares"].items()}
        if all(run.predicted > 0 and run.measured > 0 for run in seen):
            return Calibration(seen, shares)
    return Calibration()
