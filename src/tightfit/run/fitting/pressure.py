"""Calls for which the allocator had to give its cache back, or refused something."""

from __future__ import annotations

from collections.abc import Hashable

from tightfit.card import Reading


class Pressure:
    """Tells, from the reading that is taken before each call anyway, how the call before it went.

    The first call of a kind after weights were moved may have retries: it fills the cache. When
    those that follow have them too, each call of a loop will, and each waits for the card.
    """

    def __init__(self) -> None:
        self._settled: set[Hashable] = set()
        self._last: tuple[Hashable, Reading] | None = None

    def begins(self, kind: Hashable, before: Reading) -> None:
        """A call of that kind is about to be made; `before` was read when weights were in place."""
        self._last = kind, before

    def moved(self) -> None:
        """Weights were moved, or a call failed: whatever comes next begins with another cache."""
        self._settled.clear()
        self._last = None

    def found(self, now: Reading) -> Hashable | None:
        """The kind of the call before, where it should have had more room; said once."""
        if self._last is None:
            return None
        (kind, before), self._last = self._last, None
        refused = (now.refused_since(before) or 0) > 0
        retried = now.retries > before.retries and kind in self._settled
        self._settled.add(kind)
        return kind if refused or retried else None
