"""Which bytes of the host the lanes of a virtual card are at work in."""

from __future__ import annotations

from collections.abc import Iterator

from tightfit.card.virtual.clocks import Clock
from tightfit.card.virtual.pending import Back, Copy
from tightfit.card.virtual.uses import Span, overlap, within


class HostSide:
    """Copies from the host and back to it, as long as the host has not waited for them."""

    def __init__(self) -> None:
        self._sent: dict[tuple[Span, int], Copy] = {}
        self._backs: list[Back] = []

    @property
    def backs(self) -> tuple[Back, ...]:
        """Copies back that the host has not waited for."""
        return tuple(self._backs)

    @property
    def busy(self) -> bool:
        """Whether a copy back has yet to be seen by the host."""
        return any(not each.arrived for each in self._backs)

    def sends(self, copy: Copy) -> None:
        """A lane copies from here."""
        self._sent[copy.place, copy.lane] = copy

    def comes(self, back: Back) -> None:
        """A lane copies to here; what it goes over is in its past, or was reported."""
        self._sent = {at: each for at, each in self._sent.items() if not within(at[0], back.place)}
        self._backs = [each for each in self._backs if not within(each.place, back.place)]
        self._backs.append(back)

    def senders(self, place: Span) -> Iterator[Copy]:
        """Copies from bytes of `place`."""
        for (other, _), copy in self._sent.items():
            if overlap(other, place) and not copy.gone:
                yield copy

    def comers(self, place: Span) -> Iterator[Back]:
        """Copies back to bytes of `place`."""
        return (each for each in self._backs if overlap(each.place, place))

    def forget(self, known: Clock) -> None:
        """Whatever comes from now on comes after what the host has waited for."""
        if self._backs:
            self._backs = [each for each in self._backs if each.tick > known.get(each.lane, 0)]
        if self._sent:
            self._sent = {
                at: each
                for at, each in self._sent.items()
                if each.tick > known.get(each.lane, 0) and not each.gone
            }
