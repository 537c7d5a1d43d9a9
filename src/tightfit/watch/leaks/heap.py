"""The walk over everything that Python reaches, level by level, and the shortest way to some of it.

A walk downwards from what is alive by itself reads each object once, in C, and meets frozen
objects too; `gc.get_referrers` reads all objects again for every link of a chain.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from tightfit.watch.leaks.graphs import gradient, has_history, tensors_in
from tightfit.watch.leaks.roots import Root

_CHUNK = 1024
_FEW = 16


@dataclass
class Limits:
    """How far a search goes.

    Attributes:
        seconds: in all, of this thread's own time.
        depth: links of a chain.
        chains: storages that are told with their chain, the largest first.
    """

    seconds: float = 10.0
    depth: int = 100
    chains: int = 2000


@dataclass(eq=False)
class Walk:
    """What was reached so far, and where what was looked for is.

    Attributes:
        deadline: when to stop, by the clock of this thread: on a busy machine it goes slower.
        depth: likewise, in links.
        levels: the objects that are so many links away from a root, roots first.
        seen: ids of all objects that were reached.
        found: the level that each wanted object was first reached at.
        histories: tensors on the way that keep what they were made from.
        cut: why it stopped early; empty where it did not.
    """

    deadline: float
    depth: int
    levels: list[list[Any]] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    found: dict[int, int] = field(default_factory=dict)
    histories: list[Any] = field(default_factory=list)
    cut: str = ""

    def down(
        self, roots: Sequence[Root], wanted: set[int], *, barred: AbstractSet[int] = frozenset()
    ) -> dict[int, list[Any]]:
        """Walk from `roots`, not into what was seen; paths to what it met of `wanted`, by id.

        A path begins with the root and ends with the object. What is `barred` is not walked into
        this time.
        """
        self.seen |= barred
        try:
            return self._down(roots, wanted)
        finally:
            self.seen -= barred

    def _down(self, roots: Sequence[Root], wanted: set[int]) -> dict[int, list[Any]]:
        self.levels, self.found = [list(roots)], {}
        while self.levels[-1] and not wanted <= self.found.keys():
            if len(self.levels) > self.depth:
                self.cut = f"chains of more than {self.depth} links were not followed"
                break
            level = self._below(self.levels[-1])
            for each in level:
                if id(each) in wanted:
                    self.found.setdefault(id(each), len(self.levels))
            self.levels.append(level)
            self.histories += [each for each in tensors_in(level) if has_history(each)]
            if self.cut:
                break
        return self._paths()

    def _below(self, level: list[Any]) -> list[Any]:
        """What the objects of a level refer to and was not seen yet."""
        below: list[Any] = []
        seen = self.seen
        for start in range(0, len(level), _CHUNK):
            # Whatever the collector does not track holds nothing that it does.
            for each in filter(gc.is_tracked, children(level[start : start + _CHUNK])):
                if id(each) not in seen:
                    seen.add(id(each))
                    below.append(each)
            if time.thread_time() > self.deadline:
                self.cut = "the time for the search ran out"
                break
        return below

    def _paths(self) -> dict[int, list[Any]]:
        """Back up from each that was found: one look at each level serves them all."""
        heads: dict[int, list[list[Any]]] = {}
        paths: dict[int, list[Any]] = {}
        for depth in range(len(self.levels) - 1, -1, -1):
            level = self.levels[depth]
            above: dict[int, list[list[Any]]] = {}
            if heads:
                for parent, key in _parents(level, set(heads)):
                    for path in heads.pop(key, ()):
                        path.append(parent)
                        above.setdefault(id(parent), []).append(path)
            heads = above
            ending = {key for key, at in self.found.items() if at == depth}
            for each in level if ending else ():
                if id(each) in ending:
                    paths[id(each)] = [each]
                    heads.setdefault(id(each), []).append(paths[id(each)])
        return {key: path[::-1] for key, path in paths.items()}


def children(level: Sequence[Any]) -> list[Any]:
    """What these objects refer to."""
    below = gc.get_referents(*level)
    if type(level[0]) is Root:
        for each in level:
            below += each.values if type(each) is Root else ()
    for each in tensors_in(level):
        slope = gradient(each)
        if slope is not None:
            below.append(slope)
    return below


def _parents(level: list[Any], keys: set[int]) -> list[tuple[Any, int]]:
    """The first of `level` that refers to each of these ids."""
    found: list[tuple[Any, int]] = []
    left = set(keys)
    waiting = [(0, len(level))]
    while waiting and left:
        start, end = waiting.pop()
        hit = left.intersection(map(id, children(level[start:end])))
        if not hit:
            continue
        if end - start == 1:
            found += [(level[start], key) for key in hit]
            left -= hit
            continue
        step = _CHUNK if end - start > _CHUNK else max(1, (end - start) // _FEW)
        parts = [(at, min(end, at + step)) for at in range(start, end, step)]
        waiting += reversed(parts)
    return found
