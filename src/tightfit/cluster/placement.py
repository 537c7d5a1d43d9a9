"""Which job runs on which card: arithmetic alone, before anything is started.

A card runs its jobs one after the other, so what counts is the peak of each by itself, and the sum
of their seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tightfit.errors import MemoryShortage
from tightfit.units import format_bytes

_SWAPS = 64
"""Looks for a better share after the first; each ends sooner than the one before it."""
_NAMED = 4
"""Jobs that are told of by name where several fit nowhere."""


@dataclass(frozen=True)
class Demand:
    """What one kind of job takes of a card.

    Attributes:
        fixed: bytes, whatever the size: weights, ring, workspaces.
        slope: bytes more for each unit of size, such as a pixel of a frame.
        slack: reserved for a byte allocated: 1.0 where the allocator keeps nothing, or where the
            other two are of reserved memory already.
    """

    fixed: int
    slope: float = 0.0
    slack: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what no job takes."""
        if self.fixed < 0 or self.slope < 0 or self.slack < 1:
            raise ValueError(f"{self} takes less than nothing")

    def peak(self, size: int) -> int:
        """Bytes at the highest, of a job of that `size`: ``(fixed + slope x size) x slack``."""
        return int((self.fixed + self.slope * size) * self.slack + 0.5)


@dataclass(frozen=True)
class Job:
    """One item of a queue.

    Attributes:
        name: for people.
        demand: of its kind.
        size: in the unit of the demand's slope.
        seconds: that it takes on a card of speed 1; None is that its size stands for them.
    """

    name: str
    demand: Demand
    size: int
    seconds: float | None = None

    @property
    def peak(self) -> int:
        """Bytes of a card."""
        return self.demand.peak(self.size)

    @property
    def work(self) -> float:
        """Seconds at speed 1; the size where nobody knows them."""
        return float(self.size) if self.seconds is None else self.seconds


@dataclass(frozen=True)
class Place:
    """A card that takes jobs.

    Attributes:
        name: unique, such as ``node-3/cuda:1``.
        room: bytes that a job may take of it.
        speed: how many times faster than one whose speed is 1.
        busy: seconds until it has done what it was given before.
    """

    name: str
    room: int
    speed: float = 1.0
    busy: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a card that never ends."""
        if self.speed <= 0:
            raise ValueError(f"`{self.name}` has a speed of {self.speed}: it would never end")

    def takes(self, job: Job) -> bool:
        """Whether there is room for it."""
        return job.peak <= self.room

    def seconds(self, job: Job) -> float:
        """That it takes here."""
        return job.work / self.speed


@dataclass(frozen=True)
class Refused:
    """A job that fits no card.

    Attributes:
        job: which.
        largest: the card with the most room; None where there is no card.
    """

    job: Job
    largest: Place | None

    @property
    def sentence(self) -> str:
        """What it needs, and what there is."""
        needs = f"`{self.job.name}` needs {format_bytes(self.job.peak)}"
        if self.largest is None:
            return f"{needs}, and there is no card."
        return (
            f"{needs}; the card with the most room, {self.largest.name}, has "
            f"{format_bytes(self.largest.room)}."
        )


@dataclass(frozen=True)
class Placing:
    """Who does what.

    Attributes:
        queues: by card, its jobs, the longest first; a card without any has an empty one.
        seconds: by card, until it has done them, with what it did before.
        refused: what fits nowhere, in the order in which it came.
    """

    queues: dict[str, tuple[Job, ...]]
    seconds: dict[str, float]
    refused: tuple[Refused, ...]

    @property
    def ends(self) -> float:
        """Seconds until the last card is done."""
        return max(self.seconds.values(), default=0.0)

    def check(self) -> None:
        """Raise `MemoryShortage`, with the figures, for jobs that fit nowhere."""
        if not self.refused:
            return
        count = len(self.refused)
        told = [each.sentence for each in self.refused[:_NAMED]]
        if count > _NAMED:
            told.append(f"So do {count - _NAMED} more.")
        raise MemoryShortage(
            f"Not enough memory on any card for {count} job{'s' if count > 1 else ''}.",
            figures=" ".join(told),
            tried=[f"{name} ({len(jobs)} jobs)" for name, jobs in self.queues.items()],
            advice="a card with more room, or smaller inputs",
        )


def place(jobs: Sequence[Job], cards: Sequence[Place]) -> Placing:
    """Share `jobs` among `cards`, each where it fits, so that the last card is done early.

    Jobs that fit the fewest cards come first, of these the longest first, each to the card that
    would be done with it soonest (Graham's longest processing time first, 1969, for cards of
    different speed and room); then jobs are moved from the card that ends last while that helps.
    What fits nowhere is refused, and takes nothing from the others. Raises `ValueError` for two
    cards of one name.
    """
    if len({card.name for card in cards}) < len(cards):
        raise ValueError("two cards have one name")
    largest = max(cards, key=lambda card: card.room, default=None)
    fitting = {job: tuple(card for card in cards if card.takes(job)) for job in jobs}
    refused = tuple(Refused(job, largest) for job in jobs if not fitting[job])
    queues: dict[str, list[Job]] = {card.name: [] for card in cards}
    ends = {card.name: card.busy for card in cards}
    for job in sorted(
        (job for job in jobs if fitting[job]), key=lambda job: (len(fitting[job]), -job.work)
    ):
        card = min(fitting[job], key=lambda card: (ends[card.name] + card.seconds(job), card.room))
        queues[card.name].append(job)
        ends[card.name] += card.seconds(job)
    _improve({card.name: card for card in cards}, queues, ends)
    return Placing(
        {name: tuple(sorted(queue, key=lambda job: -job.work)) for name, queue in queues.items()},
        ends,
        refused,
    )


def next_for(card: Place, waiting: Sequence[Job], others: Sequence[Place] = ()) -> Job | None:
    """The job of `waiting` that `card`, which is free, should take now; None where none fits.

    That which the fewest of the `others` could take, so that a large card is not busy with what a
    small one could do when something large waits; of these the longest, and of equals the first.
    """
    fitting = [job for job in waiting if card.takes(job)]
    return min(fitting, key=_urgency(others), default=None)


def _urgency(others: Sequence[Place]) -> Callable[[Job], tuple[int, float]]:
    return lambda job: (sum(other.takes(job) for other in others), -job.work)


def _improve(cards: dict[str, Place], queues: dict[str, list[Job]], ends: dict[str, float]) -> None:
    """Move a job away from the card that ends last, as long as the later of the two ends sooner."""
    for _ in range(_SWAPS):
        last = max(ends, key=lambda name: ends[name], default=None)
        if last is None:
            return
        best: tuple[float, Job, str] | None = None
        for job in queues[last]:
            left = ends[last] - cards[last].seconds(job)
            for name, card in cards.items():
                if name == last or not card.takes(job):
                    continue
                later = max(left, ends[name] + card.seconds(job))
                if later < ends[last] * (1 - 1e-9) and (best is None or later < best[0]):
                    best = later, job, name
        if best is None:
            return
        _, job, name = best
        queues[last].remove(job)
        ends[last] -= cards[last].seconds(job)
        queues[name].append(job)
        ends[name] += cards[name].seconds(job)
