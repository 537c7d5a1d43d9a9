"""How much of a card we may use."""

from __future__ import annotations


def room_left(
    *,
    budget: int,
    total: int,
    held: int,
    held_by_others: int = 0,
    context: int = 0,
    reserve: int = 0,
) -> int:
    """The bytes that may still be taken, never negative (DESIGN: *room*).

    The smaller of what the budget leaves and what the card leaves. The context comes off the
    card, never off the budget. `held` is what this process has in tensors.
    """
    by_budget = budget - held
    by_card = total - held_by_others - context - reserve - held
    return max(0, min(by_budget, by_card))
