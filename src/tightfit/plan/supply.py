"""What a card, its link and the host have to give."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tightfit.plan.figure import NOTHING, UNKNOWN_RATE, Figure, Rate
from tightfit.plan.room import room_left


@dataclass(frozen=True)
class Host:
    """Host memory.

    Attributes:
        total: of the machine.
        available: what can be taken without swapping.
        cgroup_limit: of the group of processes we are in; None is none.
        cgroup_used: what that group holds, page cache apart.
        pin_limit: what may be locked; None is no limit but the memory itself.
        rounding: what a pinned buffer really takes: ``exact`` where we register a mapping of our
            own, ``power_of_two`` under an allocator that rounds each one up.
    """

    total: int
    available: int
    cgroup_limit: int | None = None
    cgroup_used: int = 0
    pin_limit: int | None = None
    rounding: str = "exact"

    @property
    def room(self) -> int:
        """What may still be taken, never negative."""
        left = self.available
        if self.cgroup_limit is not None:
            left = min(left, self.cgroup_limit - self.cgroup_used)
        return max(0, left)


@dataclass(frozen=True)
class Annexe:
    """Room on a second card, where weights may lie that are streamed from there.

    Attributes:
        card: its name.
        total, budget: of that card, and what may be used of it.
        held: what this process has on it beside such weights.
        room: bytes for such weights, those that lie there already included.
        rate: from there to the card that computes.
        held_by_others, context: outside our tensors; unknown ones are said and count as 0.
        reserve: kept free.
    """

    card: str
    total: int
    budget: int
    room: int
    held: int = 0
    rate: Rate = UNKNOWN_RATE
    held_by_others: Figure = NOTHING
    context: Figure = NOTHING
    reserve: int = 0


@dataclass(frozen=True)
class Supply:
    """What there is.

    Attributes:
        card: its name, as the user wrote it.
        total: memory of the card.
        budget: what we may use of it.
        held: what this process has on it already, and keeps.
        held_by_others, context: outside our tensors; unknown ones are said and count as 0.
        reserve: kept free.
        allocator: ``exact``, ``native``, ``async`` or ``expandable``.
        link: host to card from pinned memory, bytes a second.
        staged: likewise from memory that is not pinned.
        disk: reading a file that is not in memory, bytes a second.
        compute: floating point operations a second in the compute dtype.
        unpack: bytes of weights, as they are used, that the card unpacks in a second.
        host: None is unknown.
        annexe: room on a second card; None is none.
    """

    card: str
    total: int
    budget: int
    held: int = 0
    held_by_others: Figure = NOTHING
    context: Figure = NOTHING
    reserve: int = 0
    allocator: str = "exact"
    link: Rate = UNKNOWN_RATE
    staged: Rate = UNKNOWN_RATE
    disk: Rate = UNKNOWN_RATE
    compute: Rate = UNKNOWN_RATE
    unpack: Rate = UNKNOWN_RATE
    host: Host | None = None
    annexe: Annexe | None = None

    @property
    def room(self) -> int:
        """What may still be taken on the card, never negative."""
        return room_left(
            budget=self.budget,
            total=self.total,
            held=self.held,
            held_by_others=self.held_by_others.known,
            context=self.context.known,
            reserve=self.reserve,
        )

    @property
    def room_of_card(self) -> int:
        """What the room would be if the budget were all of the card."""
        return replace(self, budget=self.total).room
