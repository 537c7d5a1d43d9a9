"""HOW MUCH ROOM IS THERE? Cards, what they hold, and the only hands on an allocator."""

from tightfit.card.base import Card, Reading
from tightfit.card.opener import open_card, open_cards

__all__ = ["Card", "Reading", "open_card", "open_cards"]
