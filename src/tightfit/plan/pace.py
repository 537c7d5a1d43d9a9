"""How long one call takes, and what binds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tightfit.plan.demand import Demand
from tightfit.plan.figure import UNKNOWN_RATE, Source, weakest
from tightfit.plan.supply import Supply


@dataclass(frozen=True)
class Copied:
    """Bytes that one call copies to the card, by where they come from."""

    pinned: int = 0
    staged: int = 0
    mapped: int = 0
    parked: int = 0

    @property
    def bytes(self) -> int:
        """From all of them."""
        return self.pinned + self.staged + self.mapped + self.parked


@dataclass(frozen=True)
class Pace:
    """How long one call takes.

    Attributes:
        moved_bytes: B.
        compute_seconds: C, with everything resident; None is unknown.
        copy_seconds: B/W; None is unknown.
        overlaps: whether copies run while others are computed with.
        source: the weakest of the figures that this rests on.
        waits: seconds above the limit, from streamed pieces that lie close together or slots that
            are few, as far as they are predicted.
    """

    moved_bytes: int
    compute_seconds: float | None
    copy_seconds: float | None
    overlaps: bool
    source: Source
    waits: float = 0.0

    @property
    def limit_seconds(self) -> float | None:
        """``max(C, B/W)``, or ``C + B/W`` where nothing is copied ahead.

        Where only one of the two is known, that one; None if neither is.
        """
        known = [s for s in (self.compute_seconds, self.copy_seconds) if s is not None]
        if not known or (not self.moved_bytes and self.compute_seconds is None):
            return None
        return max(known) if self.overlaps else sum(known)

    @property
    def seconds(self) -> float | None:
        """What is predicted: the limit, and the waits."""
        limit = self.limit_seconds
        return None if limit is None else limit + self.waits

    @property
    def at_least(self) -> bool:
        """Whether `seconds` leaves out something that is not known."""
        return self.compute_seconds is None or self.copy_seconds is None

    @property
    def binds(self) -> Literal["compute", "link"] | None:
        """Which of the two takes longer; None where that is not known."""
        if not self.moved_bytes:
            return "compute"
        if self.compute_seconds is None or self.copy_seconds is None:
            return None
        return "link" if self.copy_seconds > self.compute_seconds else "compute"


def compute_seconds(demand: Demand, supply: Supply) -> tuple[float | None, Source]:
    """Of one call with everything resident, and where that comes from."""
    if demand.seconds is not None:
        return demand.seconds, "measured"
    return supply.compute.seconds(demand.flops), weakest((supply.compute.source, "predicted"))


def pace_of(demand: Demand, supply: Supply, copied: Copied, *, overlaps: bool) -> Pace:
    """The limit of one call of `demand` that copies so much."""
    computing, source = compute_seconds(demand, supply)
    peer = UNKNOWN_RATE if supply.annexe is None else supply.annexe.rate
    times = (
        (supply.link, supply.link.seconds(copied.pinned), copied.pinned),
        (supply.staged, supply.staged.seconds(copied.staged), copied.staged),
        (supply.disk, supply.disk.seconds(copied.mapped), copied.mapped),
        (peer, peer.seconds(copied.parked), copied.parked),
    )
    copying: float | None = 0.0
    sources: list[Source] = [] if computing is None else [source]
    for rate, seconds, size in times:
        copying = None if copying is None or seconds is None else copying + seconds
        sources += [rate.source] if size else []
    return Pace(copied.bytes, computing, copying, overlaps, weakest(sources))
