"""The search for who holds what stayed."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tightfit.card import Reading
from tightfit.units import format_bytes
from tightfit.watch.leaks.cycles import Unreached
from tightfit.watch.leaks.graphs import saved
from tightfit.watch.leaks.heap import Limits, Walk
from tightfit.watch.leaks.kinds import kind_of
from tightfit.watch.leaks.leak import Hold, Leak
from tightfit.watch.leaks.links import chain_of, summary
from tightfit.watch.leaks.moment import (
    Moment,
    Stored,
    alive,
    read_cards,
    storages_of,
    unexplained_blocks,
)
from tightfit.watch.leaks.roots import lasting, libraries, running
from tightfit.watch.leaks.sites import site_of
from tightfit.weigh import weights


@dataclass(eq=False)
class Search:
    """Strong references to what is looked for; gone before the answer is given."""

    before: Moment
    limits: Limits
    notes: list[str] = field(default_factory=list)
    pending: list[tuple[Leak, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._deadline = time.thread_time() + self.limits.seconds
        self._everything = gc.get_objects()
        self._stored = alive(self.before.scope, self._everything)
        self._stayed = sorted(
            (each for key, each in self._stored.items() if key not in self.before.storages),
            key=lambda each: -each.size,
        )
        # Before the walk, since its own objects would be traced as well.
        self._sites = {
            each.key: site_of(each.objects) for each in self._stayed[: self.limits.chains]
        }

    def let_go(self) -> None:
        """Hold nothing any more: it is itself among all the objects that it has listed."""
        self._everything.clear()
        self._stored.clear()
        self._stayed.clear()

    def books(self) -> tuple[dict[str, int], dict[str, int], dict[str, Reading]]:
        """By how much the workspaces of libraries have grown, by device; likewise what is none, and
        no tensor explains either; and the cards' figures.

        Where an allocator does not tell its blocks, all that no tensor explains is a workspace.
        """
        readings, unexplained = read_cards(self.before.scope, self._stored.values())
        grown = {
            name: size - self.before.unexplained.get(name, 0) for name, size in unexplained.items()
        }
        strange = self._strange() if any(size > 0 for size in grown.values()) else {}
        for name, size in strange.items():
            grown[name] -= size
        return {name: size for name, size in grown.items() if size}, strange, readings

    def _strange(self) -> dict[str, int]:
        """Bytes of new blocks that no tensor lies in, and that are no workspace by their size."""
        blocks = unexplained_blocks(self.before.scope, self._stored.values())
        sums = {
            name: sum(
                block.bytes
                for block in left
                if block.address not in self.before.blocks[name] and not block.is_workspace
            )
            for name, left in blocks.items()
            if name in self.before.blocks
        }
        return {name: size for name, size in sums.items() if size}

    def run(self) -> list[Leak]:
        """Leaks whose holders are known; those that only a collection tells apart are `pending`."""
        if not self._stayed:
            return []
        told = self._told()
        paths = self._paths(told)
        leaks = []
        left = []
        for stored in told:
            path = paths.get(stored.key)
            if path is None:
                left.append(stored)
            elif not self._was_there(path):
                kind, chain = kind_of(path, stored.size), chain_of(path)
                leaks.append(self._leak(stored, kind, chain, path[-1]))
        self.pending = self._unreached(left)
        if self._cut:
            self.notes.append(f"The search was cut short: {self._cut}.")
        return leaks

    def _told(self) -> list[Stored]:
        """The storages that are told, the largest first."""
        told = self._stayed[: self.limits.chains]
        rest = self._stayed[self.limits.chains :]
        if rest:
            size = format_bytes(sum(each.size for each in rest))
            what = "storage" if len(rest) == 1 else "storages"
            self.notes.append(f"{len(rest)} more {what} of {size} in all stayed: these are small.")
        return told

    def _paths(self, told: list[Stored]) -> dict[int, list[Any]]:
        """By storage: to that of its tensors which shows most of it and can be reached.

        From modules of the program first, through libraries next; from frames that run only to what
        nothing else leads to.
        """
        walk = Walk(self._deadline, self.limits.depth)
        paths: dict[int, list[Any]] = {}
        for roots, barred in ((lasting, libraries()), (lasting, set()), (running, set())):
            left = [each for each in told if each.key not in paths]
            if left and not walk.cut:
                reached = walk.down(roots(), _objects_of(left), barred=barred)
                paths |= {each.key: path for each in left if (path := _best(each, reached))}
        self._cut, self._reached = walk.cut, walk.seen
        left = [each for each in told if each.key not in paths]
        if left and not walk.cut:
            paths |= self._through_histories(walk, {each.key: _shown(each) for each in left})
        return paths

    def _through_histories(self, walk: Walk, sought: dict[int, Any]) -> dict[int, list[Any]]:
        """What is kept for a backward: by whom, the collector does not see, and storages tell."""
        links: dict[int, Any] = {}
        for last in walk.histories:
            for kept in saved(last):
                for _, storage in storages_of(kept):
                    if storage._cdata in sought:
                        links.setdefault(storage._cdata, last)
            if time.thread_time() > self._deadline:
                break
        lasts = {id(last) for last in links.values()}
        again = Walk(self._deadline, self.limits.depth)
        heads = again.down([*lasting(), *running()], lasts) if lasts else {}
        return {
            key: [*heads[id(last)], sought[key]] for key, last in links.items() if id(last) in heads
        }

    def _unreached(self, left: list[Stored]) -> list[tuple[Leak, Any]]:
        """What nothing alive leads to; nothing is said of holders where not all were walked to."""
        if not left:
            return []
        others = None if self._cut else Unreached(self._everything, self._reached)
        told = []
        for stored in left:
            target = _shown(stored)
            chain = others.chain_to(target) if others else ("holders that were not walked to",)
            told.append((self._leak(stored, Hold.UNSEEN, chain, target), stored.weak))
        if others is not None:
            others.let_go()
        return told

    def _leak(self, stored: Stored, kind: Hold, chain: tuple[str, ...], target: Any) -> Leak:
        is_tensor = issubclass(type(target), torch.Tensor)
        return Leak(
            bytes=stored.size,
            shape=tuple(target.shape) if is_tensor else None,
            dtype=str(target.dtype).removeprefix("torch.") if is_tensor else None,
            device=str(stored.device),
            kind=kind,
            chain=(*chain, summary(target, stored.size)),
            site=self._sites.get(stored.key),
        )

    def _was_there(self, path: list[Any]) -> bool:
        """Whether it is a weight of a module that was there: it moved, and was not left behind."""
        target = path[-1]
        owner = next((each for each in reversed(path) if issubclass(type(each), nn.Module)), None)
        if owner is None or not (self.before.had(owner) or self._is_frozen(owner)):
            return False
        return any(held.tensor is target for held in weights(owner))

    def _is_frozen(self, module: nn.Module) -> bool:
        """Whether the collector was told to pass over it before the first moment.

        Of what it passed over some may be gone since; more of it is from a later time.
        """
        if not 0 < gc.get_freeze_count() <= self.before.frozen:
            return False
        return not any(each is module for each in self._everything)


def _shown(stored: Stored) -> Any:
    """The largest tensor on it, the oldest among equals."""
    return max(stored.objects, key=_values)


def _values(each: Any) -> int:
    return each.numel() if issubclass(type(each), torch.Tensor) else -1


def _objects_of(told: list[Stored]) -> set[int]:
    return {id(each) for stored in told for each in stored.objects}


def _best(stored: Stored, paths: dict[int, list[Any]]) -> list[Any] | None:
    """The path to the largest tensor on it that was reached; the shortest among equals."""
    reached = [paths[id(each)] for each in stored.objects if id(each) in paths]
    return max(reached, key=lambda path: (_values(path[-1]), -len(path)), default=None)
