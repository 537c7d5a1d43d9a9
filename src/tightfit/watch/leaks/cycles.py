"""What holds an object that nothing alive leads to: a cycle, or what Python cannot see."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tightfit.watch.leaks.frames import is_ours
from tightfit.watch.leaks.links import chain_of

_MOST = 2000


@dataclass(eq=False)
class _Above:
    """Who refers to whom, upwards from one object.

    Attributes:
        order: what was met, nearest first.
        holders: who refers to an object, by its id.
        towards: what an object refers to on the shortest way down, by its id.
    """

    order: list[Any]
    holders: dict[int, list[Any]] = field(default_factory=dict)
    towards: dict[int, Any] = field(default_factory=dict)

    def path_from(self, top: Any) -> list[Any]:
        """The shortest way down to the object."""
        path = [top]
        while id(path[-1]) in self.towards:
            path.append(self.towards[id(path[-1])])
        return path

    def loop_at(self, start: Any) -> list[Any] | None:
        """The shortest way from `start` back to itself; None where there is none."""
        after: dict[int, Any] = {}
        waiting = [start]
        while waiting:
            below = waiting.pop(0)
            for holder in self.holders.get(id(below), ()):
                if id(holder) in after:
                    continue
                after[id(holder)] = below
                if holder is start:
                    loop = [start, below]
                    while loop[-1] is not start:
                        loop.append(after[id(loop[-1])])
                    return loop
                waiting.append(holder)
        return None


def chain_above(target: Any, *, known: set[int], deadline: float) -> tuple[tuple[str, ...], Any]:
    """A chain down to `target`, from a cycle where there is one; and the object it begins with.

    Args:
        known: ids of the objects that count; what the search itself made is not among them.
        deadline: by the monotonic clock.
    """
    above = _look_up(target, known, deadline)
    for each in above.order:
        loop = above.loop_at(each)
        if loop is not None:
            head = f"cycle {type(each).__name__} ({' → '.join(chain_of(loop))} is itself)"
            return (head, *chain_of(above.path_from(each))), each
    top = above.order[-1]
    return (f"{type(top).__name__}", *chain_of(above.path_from(top))), top


def _look_up(target: Any, known: set[int], deadline: float) -> _Above:
    above = _Above([target])
    level, seen = [target], {id(target)}
    while level and len(above.order) < _MOST and time.monotonic() < deadline:
        keys = {id(each): each for each in level}
        following = []
        for holder in gc.get_referrers(*level):
            if not _counts(holder, known):
                continue
            for held in gc.get_referents(holder):
                if id(held) in keys:
                    above.holders.setdefault(id(held), []).append(holder)
                    if id(holder) not in seen:
                        seen.add(id(holder))
                        above.towards[id(holder)] = held
                        above.order.append(holder)
                        following.append(holder)
        level = following
    return above


def _counts(holder: Any, known: set[int]) -> bool:
    if id(holder) not in known:
        return False
    return not (isinstance(holder, FrameType) and is_ours(holder.f_code))
