"""How long there has to be more room until weights are brought up for it."""

from __future__ import annotations

from dataclasses import dataclass

_CALLS = (3, 96)
"""Calls in a row that must find more room before weights are brought up for it, at first; and at
most, once it was seen that what they took was needed again soon."""


@dataclass
class Patience:
    """Others may want the room back: to move weights to and fro costs more than it gains."""

    _calls: int = _CALLS[0]
    _more: int = 0
    _grew: bool = False
    _vain: int = 0

    def rested(self) -> None:
        """The weights left the card, so whatever comes next is no growth."""
        self._more = self._vain = 0
        self._grew = False

    def was_short(self) -> None:
        """A call found too little room: where weights were brought up just before, too early."""
        self._more = self._vain = 0
        if self._grew:
            self._grew, self._calls = False, min(2 * self._calls, _CALLS[1])

    def is_over(self, spare: int, worth: int) -> bool:
        """Whether enough calls in a row found `spare` bytes beyond what is `worth` the move."""
        self._more = self._more + 1 if spare > max(worth, self._vain) else 0
        return self._more >= self._calls

    def was_tried(self, spare: int, worth: int, *, gained: bool) -> None:
        """They were planned anew for it; whether they `gained` by that.

        A plan takes the host milliseconds, and one that gains nothing is not made again.
        """
        self._more, self._grew = 0, gained
        self._vain = 0 if gained else spare + worth // 4
