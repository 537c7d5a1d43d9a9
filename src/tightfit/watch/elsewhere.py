"""What happens on another card than the one that a trace shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tightfit.watch.events import Event, Moved, Rests, StreamedStep, Wait
from tightfit.watch.recorder import Recorder

if TYPE_CHECKING:
    from tightfit.card.base import Card

_TOLD = (Moved, Rests, StreamedStep, Wait)


class Elsewhere(Recorder):
    """Tells another recorder of networks that run on `card`, and not of the memory there.

    A trace has one line of allocated and one of reserved bytes, and those are of the card that
    stands in its header; what is tried on another one bears its name.
    """

    def __init__(self, recorder: Recorder, card: Card) -> None:
        super().__init__(limit=1)
        self._recorder = recorder
        self._card = card.name

    @property
    def whole(self) -> Recorder:
        """The other."""
        return self._recorder.whole

    def event(self, kind: str, **figures: Any) -> None:
        """With the name of the card."""
        self._recorder.event(kind, card=self._card, **figures)

    def tell(self, event: Event, *, at: float | None = None) -> None:
        """What has no bytes of the card in it."""
        if isinstance(event, _TOLD):
            self._recorder.tell(event, at=at)

    def now(self) -> float:
        """On the clock of the other."""
        return self._recorder.now()

    def on(self, card: Card) -> None:
        """Not that of the header."""

    def peaks(self, allocated: int | None, reserved: int | None) -> None:
        """Not those of the trace."""

    def memory(self, allocated: int, reserved: int) -> None:
        """Not that of the trace."""
