"""HOW MUCH ROOM IS THERE? Cards, what they hold, and the only hands on an allocator."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.card.base import Card, Reading
    from tightfit.card.opener import open_card, open_cards

__all__ = ["Card", "Reading", "open_card", "open_cards"]


def __getattr__(name: str) -> Any:
    """Names come when they are used: the table of cards and the driver's figures need no torch."""
    if name in ("Card", "Reading"):
        from tightfit.card import base

        return getattr(base, name)
    if name in __all__:
        from tightfit.card import opener

        return getattr(opener, name)
    raise AttributeError(f"module `tightfit.card` has no attribute `{name}`")
