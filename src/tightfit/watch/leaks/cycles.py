"""What holds an object that nothing alive leads to: a cycle, or what Python cannot see."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable
from types import FrameType
from typing import Any

from tightfit.watch.leaks.frames import is_ours
from tightfit.watch.leaks.links import chain_of

_MOST = 2000
"""Objects above one that are looked at."""


class Unreached:
    """The objects that nothing alive leads to, and who of them refers to whom.

    Args:
        everything: all objects that the collector knows.
        reached: ids of those that something alive leads to.
    """

    def __init__(self, everything: Iterable[Any], reached: set[int]) -> None:
        unreached = [each for each in everything if id(each) not in reached]
        left = {id(each): each for each in unreached if _counts(each)}
        self._holders: dict[int, list[Any]] = {}
        for holder in left.values():
            for held in gc.get_referents(holder):
                if id(held) in left:
                    self._holders.setdefault(id(held), []).append(holder)

    def let_go(self) -> None:
        """Hold nothing any more."""
        self._holders.clear()

    def chain_to(self, target: Any) -> tuple[str, ...]:
        """From the nearest cycle above `target` down to it, or from the farthest holder."""
        towards = self._above(target)
        order = [target, *(holder for holder, _ in towards.values())]
        for each in order:
            loop = self._loop_at(each)
            if loop is not None:
                head = f"cycle {type(each).__name__} ({' → '.join(chain_of(loop))} is itself)"
                return (head, *chain_of(_path(each, towards)))
        if len(order) == 1:
            return ("what Python's collector does not see",)
        top = order[-1]
        return (f"{type(top).__name__} that nobody is seen to hold", *chain_of(_path(top, towards)))

    def _above(self, target: Any) -> dict[int, tuple[Any, Any]]:
        """By id, nearest first: each holder, and what it refers to on the way down."""
        towards: dict[int, tuple[Any, Any]] = {}
        waiting = deque([target])
        while waiting and len(towards) < _MOST:
            held = waiting.popleft()
            for holder in self._holders.get(id(held), ()):
                if id(holder) not in towards and holder is not target:
                    towards[id(holder)] = (holder, held)
                    waiting.append(holder)
        return towards

    def _loop_at(self, start: Any) -> list[Any] | None:
        """The shortest way from `start` back to itself; None where there is none."""
        after: dict[int, Any] = {}
        waiting = deque([start])
        while waiting and len(after) < _MOST:
            held = waiting.popleft()
            for holder in self._holders.get(id(held), ()):
                if id(holder) in after:
                    continue
                after[id(holder)] = held
                if holder is start:
                    loop = [start, held]
                    while loop[-1] is not start:
                        loop.append(after[id(loop[-1])])
                    return loop
                waiting.append(holder)
        return None


def _path(top: Any, towards: dict[int, tuple[Any, Any]]) -> list[Any]:
    path = [top]
    while id(path[-1]) in towards:
        path.append(towards[id(path[-1])][1])
    return path


def _counts(each: Any) -> bool:
    return not (type(each) is FrameType and is_ours(each.f_code))
