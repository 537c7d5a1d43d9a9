"""Which weights come next, learnt from which came after which."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Succession(Generic[T]):
    """What comes after what, by the last two that came; as foretold where that was never seen.

    A wrong guess costs time and nothing else. Order may change at any time: the latest is believed.
    """

    def __init__(self, order: Sequence[T]) -> None:
        """`order` is foretold, and begins anew at its end."""
        self._after: dict[T, T] = {
            item: order[(at + 1) % len(order)] for at, item in enumerate(order)
        }
        self._after_two: dict[tuple[T | None, T], T] = {}
        self._before: T | None = None
        self._now: T | None = order[-1] if order else None
        self._begun = False

    def saw(self, item: T) -> None:
        """`item` is used now; the same again and again counts once."""
        if self._begun and item == self._now:
            return
        if self._begun and self._now is not None:
            self._after[self._now] = item
            self._after_two[self._before, self._now] = item
            self._before = self._now
        self._now, self._begun = item, True

    def coming(self, count: int) -> list[T]:
        """Up to `count` different items, the next first; the one used last may come again."""
        found: list[T] = []
        before, now = self._before, self._now
        if now is None:
            return found
        for _ in range(2 * len(self._after)):
            if len(found) >= count:
                break
            following = self._after_two.get((before, now), self._after[now])
            before, now = now, following
            if following not in found:
                found.append(following)
        return found
