"""Where the weights of a module are, by which plan, and each time that this changed."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.plan.plan import Plan
from tightfit.plan.streaming.residency import Residency


@dataclass(frozen=True)
class Change:
    """One time that weights were placed anew.

    Attributes:
        call: the number of the call before which it was done, from 0; None is at the start.
        why: in words.
        resident_bytes: before and after.
        seconds: that moving them took, packing and pinning included, planning not; with tries
            just before that found too little room.
    """

    call: int | None
    why: str
    resident_bytes: tuple[int, int]
    seconds: float = 0.0


@dataclass
class Placement:
    """Where the weights are now.

    Attributes:
        plan, residency: by which they were placed, and what came of it.
        taken: bytes on the card, with what the allocator takes for them.
        given: which of `Need.slacks` there was room for.
    """

    plan: Plan
    residency: Residency
    taken: int
    given: int = 0

    def is_worse(self, plan: Plan) -> bool:
        """Whether `plan` copies less in a call, and is another than that which was followed.

        The allocator may have taken so much then that fewer stay than was planned; it would again.
        """
        found, before = plan.stages[0].residency, self.plan.stages[0].residency
        assert found is not None
        return found != before and found.moved_bytes < self.residency.moved_bytes
