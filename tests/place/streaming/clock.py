"""A card on paper: copies take as long as their bytes, compute as long as it is told."""

from __future__ import annotations

import torch

from tightfit.card.lanes import Lane, Mark, Queue, Stamp


class Moment(Mark, Stamp):
    """A point, and when it is passed."""

    def __init__(self, at: float) -> None:
        self.at = at

    def drain(self) -> None:
        """The host has all the time in the world."""

    def seconds_since(self, earlier: Stamp) -> float:
        assert isinstance(earlier, Moment)
        return self.at - earlier.at


class Timed(Queue):
    """A queue whose entries take a known time; the host takes none."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self, *, again: Mark | None = None) -> Mark:
        return self._set(again)

    def stamp(self, *, again: Stamp | None = None) -> Stamp:
        return self._set(again)

    def wait(self, mark: Mark) -> None:
        assert isinstance(mark, Moment)
        self.now = max(self.now, mark.at)

    def _set(self, again: object) -> Moment:
        moment = again if isinstance(again, Moment) else Moment(0.0)
        moment.at = self.now
        return moment


class TimedLane(Timed, Lane):
    """One byte takes a second divided by the rate."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._rate = rate

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)
        self.now += source.nbytes / self._rate

    def copy_back(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """In the other direction, at the same rate."""
        self.copy(target, source)

    def drain(self) -> None:
        """All is done."""
