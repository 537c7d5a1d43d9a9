"""Two moments, what stayed between them, and who holds it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tightfit.card import Reading
from tightfit.units import format_bytes
from tightfit.watch.leaks.heap import Limits
from tightfit.watch.leaks.leak import Hold, Leak
from tightfit.watch.leaks.moment import Moment
from tightfit.watch.leaks.search import Search
from tightfit.watch.recorder import Recorder


@dataclass(frozen=True)
class Found:
    """What stayed between two moments.

    Attributes:
        leaks: the largest first.
        workspaces: by device, how many bytes more libraries keep as scratch. They are no leaks, and
            are told apart.
        unexplained: by device, bytes that are new, that no object of Python explains, and that are
            no known workspace: what is kept for a backward, an extension's, or a pool of CUDA
            graphs. Nobody can tell whether they should be there.
        readings: of the cards, by device, at the second moment.
        notes: what the search could not do, a sentence each.
    """

    leaks: tuple[Leak, ...]
    workspaces: dict[str, int]
    readings: dict[str, Reading]
    notes: tuple[str, ...] = ()
    unexplained: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Of all leaks."""
        return sum(leak.bytes for leak in self.leaks)

    def tell(self, recorder: Recorder) -> None:
        """Write an event named ``leak`` for each, one for what libraries keep on a device, and one
        for what nobody explains there.
        """
        for leak in self.leaks:
            recorder.event("leak", **leak.as_event())
        for device, size in self.workspaces.items():
            recorder.event("library_workspace", device=device, bytes=size)
        for device, size in self.unexplained.items():
            recorder.event("unexplained", device=device, bytes=size)

    def lines(self) -> list[str]:
        """For people: leaks, library workspaces, what is unexplained, notes."""
        lines = [leak.line() for leak in self.leaks]
        lines += [
            f"{format_bytes(size)} on {device}, library workspace: no leak"
            for device, size in self.workspaces.items()
            if size > 0
        ]
        lines += [
            f"{format_bytes(size)} on {device} that no object of Python explains and that is no "
            "known workspace: look for what a backward needs, an extension, or CUDA graphs"
            for device, size in self.unexplained.items()
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
        search = Search(before, limits or Limits())
        try:
            if traced is not None:
                traced()
            workspaces, unexplained, readings = search.books()
            leaks = search.run()
            pending, notes = search.pending, search.notes
        finally:
            search.let_go()
    if pending:
        gc.collect()
        leaks += [_settled(leak, weak) for leak, weak in pending]
    leaks.sort(key=lambda leak: -leak.bytes)
    return Found(tuple(leaks), workspaces, readings, tuple(notes), unexplained)


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
