"""What one step of a streamed module did: copies, waits and compute, use by use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class BlockTrace:
    """One use of weights that stream.

    All times are seconds from the start of the step, None where the card has no clock or the
    point was not come to.

    Attributes:
        name: of the piece.
        moved_bytes: that were copied for this use; 0 where they were still there.
        copy_start, copy_end: of that copy, which may have begun in the step before.
        reached: when compute had nothing else to do than this.
        start: when the weights were there.
        end: when compute was done with them.
    """

    name: str
    moved_bytes: int
    copy_start: float | None
    copy_end: float | None
    reached: float | None
    start: float | None
    end: float | None

    @property
    def copy_seconds(self) -> float | None:
        """How long the copy took; 0 where there was none."""
        return _between(self.copy_start, self.copy_end) if self.moved_bytes else 0.0

    @property
    def stall_seconds(self) -> float | None:
        """How long compute waited for the weights."""
        return _between(self.reached, self.start)

    @property
    def compute_seconds(self) -> float | None:
        """From the weights' arrival to their last use, whatever else was computed meanwhile."""
        return _between(self.start, self.end)


@dataclass(frozen=True)
class StepTrace:
    """One outermost call of a streamed module.

    Attributes:
        seconds: T, on the card, from the first thing that was queued to the last; None where the
            card has no clock.
        blocks: the uses of weights that stream, in the order they began in.
    """

    seconds: float | None
    blocks: tuple[BlockTrace, ...]

    @property
    def moved_bytes(self) -> int:
        """B: copied for the uses in this step."""
        return sum(block.moved_bytes for block in self.blocks)

    @property
    def copy_seconds(self) -> float | None:
        """B/W: how long these copies took, one after another."""
        return _total(block.copy_seconds for block in self.blocks)

    @property
    def link_rate(self) -> float | None:
        """W, in bytes a second; None also where nothing was copied."""
        copying = self.copy_seconds
        return self.moved_bytes / copying if copying else None

    @property
    def stall_seconds(self) -> float | None:
        """How long compute waited for copies."""
        return _total(block.stall_seconds for block in self.blocks)

    @property
    def compute_seconds(self) -> float | None:
        """C: what is left of T without the waits for copies.

        Where the host is too slow to keep the card busy, that is part of it.
        """
        stall = self.stall_seconds
        return None if self.seconds is None or stall is None else self.seconds - stall

    @property
    def limit_seconds(self) -> float | None:
        """``max(C, B/W)``, which no order of copies goes below."""
        computing, copying = self.compute_seconds, self.copy_seconds
        return None if computing is None or copying is None else max(computing, copying)

    @property
    def times_limit(self) -> float | None:
        """``T / max(C, B/W)``."""
        limit = self.limit_seconds
        return self.seconds / limit if self.seconds is not None and limit else None

    def as_dict(self) -> dict[str, object]:
        """For reports: sizes in bytes, times in seconds but the stall, unknown is None."""
        stall = self.stall_seconds
        return {
            "seconds": self.seconds,
            "limit_seconds": self.limit_seconds,
            "times_limit": self.times_limit,
            "compute_seconds": self.compute_seconds,
            "copy_seconds": self.copy_seconds,
            "moved_bytes": self.moved_bytes,
            "link_bytes_per_second": self.link_rate,
            "stall_ms": None if stall is None else stall * 1000,
            "blocks": [
                asdict(block)
                | {
                    "copy_seconds": block.copy_seconds,
                    "stall_seconds": block.stall_seconds,
                    "compute_seconds": block.compute_seconds,
                }
                for block in self.blocks
            ],
        }


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _total(each: Iterable[float | None]) -> float | None:
    """None where one of them is not known."""
    known = list(each)
    return None if any(one is None for one in known) else sum(one or 0.0 for one in known)
