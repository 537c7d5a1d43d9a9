"""What may be used of a card, from what a user wrote."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.errors import UsageError
from tightfit.units import GIB, KIB, MIB, Share, format_bytes, parse_reserve, parse_share


@dataclass(frozen=True)
class Budget:
    """Sizes in bytes.

    Attributes:
        budget: what may be used.
        reserve: what is kept free for others.
    """

    budget: int
    reserve: int = 0


@dataclass(frozen=True)
class BudgetWish:
    """What was asked for, before the card is known.

    Attributes:
        share: of the card; None is all of it.
        reserve: bytes kept free.
    """

    share: Share | None
    reserve: int

    @classmethod
    def of(cls, vram: str | int | None, reserve: str | int | None) -> BudgetWish:
        """Parse sizes: bytes as integers, or text such as ``6GiB``, ``80%``, ``-1GiB``.

        Raises `UsageError` for what is no size, not above zero, or a reserve below zero.
        """
        if isinstance(vram, int) and vram <= 0:
            raise UsageError(f"--vram `{vram}` is not above zero.")
        share = Share(_written(vram), size=vram) if isinstance(vram, int) else None
        if isinstance(vram, str):
            share = parse_share(vram)
        kept = parse_reserve(reserve) if isinstance(reserve, str) else reserve or 0
        if kept < 0:
            raise UsageError(f"--reserve-vram `{kept}` is below zero.")
        return cls(share, kept)

    def on(self, card: str, total: int) -> Budget:
        """Of a card of `total` bytes. Raises `UsageError` where that is more than there is."""
        budget = self.share.of(total) if self.share is not None else total
        if budget > total:
            raise UsageError(
                f"--vram {format_bytes(budget)} is above what {card} has, {format_bytes(total)}."
            )
        if self.reserve >= total:
            raise UsageError(
                f"--reserve-vram {format_bytes(self.reserve)} leaves nothing of {card}, which has "
                f"{format_bytes(total)}."
            )
        return Budget(budget, self.reserve)


def _written(size: int) -> str:
    """As a user would have written it, to the byte: ``6GiB``."""
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"
