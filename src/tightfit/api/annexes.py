"""A second card for what streams: whether it is of use, by how fast it can be reached."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tightfit.card import Card
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import UsageError
from tightfit.place.link import measure_peer
from tightfit.place.streaming.annexe import Annexe
from tightfit.plan.budget import Budget
from tightfit.plan.figure import UNKNOWN_RATE, Rate
from tightfit.plan.supply import Supply
from tightfit.run.fitting.annexes import is_first, is_of_use
from tightfit.run.ladder.refused import unless_full
from tightfit.units import MIB, format_bytes

_SPARE = (64, 256 * MIB)
"""Of the card, one part in so many stays free, and so many bytes at most: a context grows."""
_peers: WeakKeyDictionary[Card, WeakKeyDictionary[Card, Rate]] = WeakKeyDictionary()
_guard = threading.Lock()


@dataclass(frozen=True, eq=False)
class Overflow:
    """What somebody offers of a second card.

    Attributes:
        card: which.
        budget: what may be used of it now, with all that this process has there.
        spare: bytes of that which are left to whatever else is done there.
    """

    card: Card
    budget: Callable[[], Budget]
    spare: int = 0

    @classmethod
    def all_of(cls, card: Card, budget: Budget) -> Overflow:
        """Where nothing else is done there."""
        part, most = _SPARE
        spare = min(card.read().total // part, most) if card.kind == "cuda" else 0
        return cls(card, lambda: budget, spare)

    def for_card(self, card: Card, supply: Supply) -> tuple[Annexe | None, Rate, str | None]:
        """The room there for what streams to `card`, how fast it comes, and why there is none.

        Raises `UsageError` for a card that it cannot be copied from.
        """
        if self.card.device == card.device:
            raise UsageError(f"overflow is {card.name} itself: name another card.")
        if self.card.kind != card.kind or card.kind == "cpu":
            raise UsageError(
                f"overflow to {self.card.name}: weights come to {card.name} from the host, or from "
                f"another {card.kind} card."
            )
        peer = peer_rate(card, self.card)
        rates = (peer.per_second, supply.link.per_second, supply.staged.per_second)
        if not is_of_use(*rates):
            why = (
                f"nothing lies on {self.card.name}: it is copied from there at "
                f"{format_bytes(int(peer.per_second or 0))}/s, and from the host at "
                f"{format_bytes(int(supply.link.per_second or 0))}/s"
            )
            return None, peer, why
        first = is_first(peer.per_second, supply.link.per_second)
        annexe = Annexe(
            self.card, self.budget, first=first, unless_full=unless_full, spare=self.spare
        )
        return annexe, peer, None


def peer_rate(card: Card, other: Card) -> Rate:
    """From `other` to `card`: measured once for each pair, told by the names of virtual ones."""
    if isinstance(card, VirtualCard) and isinstance(other, VirtualCard):
        told = [each.spec.peer for each in (card, other) if each.spec.peer is not None]
        return Rate(float(min(told)), "table") if told else UNKNOWN_RATE
    with _guard:
        known = _peers.setdefault(card, WeakKeyDictionary()).get(other)
    if known is not None:
        return known
    free = [each.read().takeable for each in (card, other)]
    least = min((each for each in free if each is not None), default=None)
    measured, _ = measure_peer(card.device, other.device, free=least)
    card.trim()
    other.trim()
    if measured is None:
        return UNKNOWN_RATE
    rate = Rate(float(measured), "measured")
    with _guard:
        _peers[card][other] = rate
    return rate
