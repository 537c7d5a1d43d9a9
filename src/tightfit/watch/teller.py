"""What a network's weights tell of where they are: to a recorder, with how the card looks then."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from tightfit.card.base import Card, Reading
from tightfit.watch.events import (
    Evicted,
    Moved,
    Others,
    Placed,
    Planned,
    Rests,
    RingOpened,
    State,
    StreamedStep,
)
from tightfit.watch.moves import moves_told
from tightfit.watch.recorder import Recorder


class Teller:
    """One network, its card, and who is told of it.

    Attributes:
        network: its name.
        card: where it runs.
        recorder: who is told; another one may be put in its place at any time.
    """

    def __init__(self, network: str, card: Card, recorder: Recorder) -> None:
        self.network = network
        self.card = card
        self.recorder = recorder
        self._others: int | None = None
        self._seen: Reading | None = None

    @property
    def fine(self) -> bool:
        """Whether every move is wanted."""
        return self.recorder.fine

    def planned(self, ledger: dict[str, int | None], budget: int, rungs: Iterable[str]) -> None:
        """Weights are to be placed so."""
        self.recorder.tell(Planned(self.network, budget, ledger, tuple(rungs)))

    def placed(self, block: str, size: int, state: State) -> None:
        """A block has its place; one that is streamed takes nothing of the card by itself."""
        now = self._seen if state == "streamed" and self._seen is not None else self.card.read()
        self._seen = now
        recorder = self.recorder
        recorder.tell(
            Placed(
                recorder.counts["placed"],
                block,
                size,
                state,
                now.reserved,
                now.allocated,
                self.network,
            )
        )

    def ring(self, size: int, slots: int) -> None:
        """Slots were allocated."""
        now = self._seen = self.card.read()
        self.recorder.tell(RingOpened(size, slots, now.reserved, now.allocated, self.network))

    def moved(self, before: int, after: int, why: str, seconds: float) -> None:
        """Weights are where a plan says."""
        self._seen = None
        self.recorder.tell(Moved(self.network, after, before, why, round(seconds, 6)))
        self.look()

    def evicted(self, block: str, size: int) -> None:
        """A block left the card."""
        self.recorder.tell(Evicted(self.network, block, size))

    def rests(self, size: int) -> None:
        """All left the card."""
        self.recorder.tell(Rests(self.network, size))
        self.look()

    def stepped(self, start: float | None, figures: dict[str, Any]) -> None:
        """A call of it was traced."""
        self.recorder.tell(StreamedStep(self.network, start, figures))

    def look(self) -> None:
        """How the card looks, and what others hold of it where that has changed."""
        now = self.card.read()
        self.recorder.on(self.card)
        if now.allocated is not None:
            self.recorder.memory(now.allocated, now.reserved or 0)
        if now.held_by_others is not None and now.held_by_others != (self._others or 0):
            self._others = now.held_by_others
            self.recorder.tell(Others(now.held_by_others))

    def moves(self) -> AbstractContextManager[None]:
        """While inside, every move of the allocator is told, if that is wanted."""
        return moves_told(self.card, self.recorder, by=self.network)
