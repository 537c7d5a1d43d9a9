"""How many items at once."""

from __future__ import annotations

MOST_AT_ONCE = 4
"""More at once no longer helps: one item already keeps the card busy."""


def batch_for(
    items: int, *, fixed: int | None, each: int | None, room: int, most: int = MOST_AT_ONCE
) -> int:
    """The largest batch that fits, never more than `most`, however much memory is free.

    Args:
        items: how many there are, 1 or more.
        fixed: bytes that are taken whatever the batch.
        each: bytes that every item of the batch adds.
        room: bytes that are free.
        most: where more no longer helps.

    Returns:
        1 if a need is unknown, so that the least is tried; 0 if not even one item fits.
    """
    if fixed is None or each is None:
        return 1
    if fixed > room:
        return 0
    cap = min(items, most)
    return cap if each <= 0 else min(cap, (room - fixed) // each)
