"""Two moments, what stayed between them, and who holds it."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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
from tightfit.watch.leaks.moment import Moment, Stored, alive, read_cards, storages_of
from tightfit.watch.leaks.roots import lasting, libraries, running
from tightfit.watch.recorder import Recorder
from tightfit.weigh import weights


@dataclass(frozen=True)
class Found:
    """What stayed between two moments.

    Attributes:
        leaks: the largest first.
        workspaces: by device, how many bytes more its books have that no tensor holds: what
            libraries keep as scratch. They are no leaks, and are told apart.
        readings: of the cards, by device, at the second moment.
        notes: what the search could not do, a sentence each.
    """

    leaks: tuple[Leak, ...]
    workspaces: dict[str, int]
    readings: dict[str, Reading]
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Of all leaks."""
        return sum(leak.bytes for leak in self.leaks)

    def tell(self, recorder: Recorder) -> None:
        """Write an event named ``leak`` for each, and one for what libraries keep on a device."""
        for leak in self.leaks:
            recorder.event("leak", **leak.as_event())
        for device, size in self.workspaces.items():
            recorder.event("library_workspace", device=device, bytes=size)

    def lines(self) -> list[str]:
        """For people: leaks, library workspaces, notes."""
        lines = [leak.line() for leak in self.leaks]
        lines += [
            f"{format_bytes(size)} on {device}, library workspace: no leak"
            for device, size in self.workspaces.items()
            if size > 0
        ]
        return [*lines, *self.notes]


def what_stayed(
    before: Moment, *, limits: Limits | None = None, traced: Callable[[], None] | None = None
) -> Found:
    """Look again, and say what was not there at `before`, with the chain to who holds it.

    Where nothing alive leads to a tensor, cycles are collected afterwards, so as to tell those from
    what is held where Python cannot see it. Nothing is kept alive by the answer.

    Args:
        before: the first moment.
        limits: how far to search; where a limit is met, a note says so.
        traced: called once allocation sites were read, when tracing can stop: it makes the search
            ten times slower.
    """
    with _no_collection():
        search = _Search(before, limits or Limits())
        try:
            if traced is not None:
                traced()
            workspaces, readings = search.books()
            leaks = search.run()
            pending, notes = search.pending, search.notes
        finally:
            search.let_go()
    if pending:
        gc.collect()
        leaks += [_settled(leak, weak) for leak, weak in pending]
    leaks.sort(key=lambda leak: -leak.bytes)
    return Found(tuple(leaks), workspaces, readings, tuple(notes))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Cycles that wait for the collector are still there when they are looked for."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _settled(leak: Leak, weak: Any) -> Leak:
    """A cycle, where the collector could free it."""
    kind = Hold.CYCLE if weak.expired() else Hold.UNSEEN
    return Leak(leak.bytes, leak.shape, leak.dtype, leak.device, kind, leak.chain, leak.site)


@dataclass(eq=False)
class _Search:
    """Strong references to what is looked for; gone before the answer is given."""

    before: Moment
    limits: Limits
    notes: list[str] = field(default_factory=list)
    pending: list[tuple[Leak, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.limits.seconds
        self._everything = gc.get_objects()
        self._stored = alive(self.before.scope, self._everything)
        self._stayed = sorted(
            (each for key, each in self._stored.items() if key not in self.before.storages),
            key=lambda each: -each.size,
        )
        # Before the walk, since its own objects would be traced as well.
        self._sites = {each.key: site_of(each) for each in self._stayed[: self.limits.chains]}

    def let_go(self) -> None:
        """Hold nothing any more: it is itself among all the objects that it has listed."""
        self._everything.clear()
        self._stored.clear()
        self._stayed.clear()

    def books(self) -> tuple[dict[str, int], dict[str, Reading]]:
        """By how much what no tensor explains has grown, by device; and the cards' figures."""
        readings, unexplained = read_cards(self.before.scope, self._stored.values())
        grown = {
            name: size - self.before.unexplained.get(name, 0) for name, size in unexplained.items()
        }
        return {name: size for name, size in grown.items() if size}, readings

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
            if time.monotonic() > self._deadline:
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


def site_of(stored: Stored) -> str | None:
    """Where it was made, if memory is being traced: the newest line outside libraries.

    Python 3.11 has no trace of objects with attributes of their own, so of tensors; a virtual
    card's charge was made along with one.
    """
    for each in stored.objects:
        for made in (each, getattr(each, "charge", None)):
            trace = None if made is None else tracemalloc.get_object_traceback(made)
            if trace is not None:
                return innermost(trace)
    return None


def innermost(trace: tracemalloc.Traceback) -> str | None:
    """``file:line``, of the newest frame that is neither PyTorch's nor ours."""
    frames = list(trace)[::-1]
    chosen = next((each for each in frames if not _is_library(each.filename)), None)
    return None if chosen is None else f"{chosen.filename}:{chosen.lineno}"


_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or file.startswith("<")
