"""The three figures that explain what a program still seems to hold."""

from __future__ import annotations

from tightfit.card.base import Reading
from tightfit.units import format_bytes


def three_lines(reading: Reading) -> tuple[str, str, str]:
    """What tensors hold, what the allocator keeps, and what no unload gives back."""
    return (
        f"allocated: {_size(reading.allocated)} in tensors of this process",
        f"reserved: {_size(reading.reserved)} taken by its allocator, of which "
        f"{_size(reading.slack)} is cache that `trim` gives back",
        f"context, others: {_size(reading.context)} for the device context of this process, which "
        f"lasts until it ends; {_size(reading.held_by_others)} held by other programs",
    )


def _size(size: int | None) -> str:
    return "unknown" if size is None else format_bytes(size)
