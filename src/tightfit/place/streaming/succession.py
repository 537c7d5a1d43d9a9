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
        self._told: dict[tuple[T | None, T, int], tuple[T, ...]] = {}

    def saw(self, item: T) -> None:
        """`item` is used now; the same again and again counts once."""
        if self._begun and item == self._now:
            return
        if self._begun and self._now is not None:
            self._learn(item)
            self._before = self._now
        self._now, self._begun = item, True

    def coming(self, count: int) -> tuple[T, ...]:
        """Up to `count` different items, the next first; the one used last may come again."""
        if self._now is None:
            return ()
        where = (self._before, self._now, count)
        told = self._told.get(where)
        if told is None:
            told = self._told[where] = tuple(self._follow(self._before, self._now, count))
        return told

    def _learn(self, item: T) -> None:
        assert self._now is not None
        where = (self._before, self._now)
        if self._after_two.get(where) != item or self._after[self._now] != item:
            self._after[self._now] = self._after_two[where] = item
            self._told.clear()

    def _follow(self, before: T | None, now: T, count: int) -> list[T]:
        found: list[T] = []
        for _ in range(2 * len(self._after)):
            if len(found) >= count:
                break
            following = self._after_two.get((before, now), self._after[now])
            before, now = now, following
            if following not in found:
                found.append(following)
        return found
