"""Room on a second card, as plans see it."""

from __future__ import annotations

from tightfit.place.streaming.annexe import Annexe
from tightfit.plan import supply as planned
from tightfit.plan.figure import Figure, Rate


def annexe_now(annexe: Annexe, peer: Rate) -> planned.Annexe:
    """As the card is now; what lies there already counts as room."""
    now, budget = annexe.card.read(), annexe.budget
    return planned.Annexe(
        annexe.card.name,
        now.total,
        budget.budget,
        annexe.capacity,
        held=max(0, (now.allocated or 0) - annexe.bytes),
        rate=peer,
        held_by_others=Figure(now.held_by_others, "measured"),
        context=Figure(now.context, "measured"),
        reserve=budget.reserve,
    )


def is_first(peer: float | None, link: float | None) -> bool:
    """Whether what streams should rather come from there than from memory that is held in place.

    By rates, as far as they are known; who asked for a second card has it where nobody knows.
    """
    return peer is None or link is None or peer > link


def is_of_use(peer: float | None, link: float | None, staged: float | None) -> bool:
    """Whether it is faster than any way from the host."""
    return is_first(peer, link) or staged is None or peer is None or peer > staged
