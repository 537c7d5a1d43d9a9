"""Runs that repeat: whether each leaves a little more behind."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType

import psutil

from tightfit.card import Card
from tightfit.units import KIB, format_bytes
from tightfit.watch.leaks.find import what_stayed
from tightfit.watch.leaks.leak import Hold, Leak
from tightfit.watch.leaks.moment import Moment, Scope, alive, look
from tightfit.watch.leaks.sites import innermost

_GROWTHS = 4
"""Rounds in a row that have to leave more than the one before."""
_LEAST = 4 * KIB
"""Bytes that a site has to leave in each of them: less is what tables grow by."""
_FRAMES = 8
_HERE = tracemalloc.Filter(False, __file__)
_OWN = tracemalloc.Filter(False, tracemalloc.__file__)


@dataclass(frozen=True)
class Round:
    """What was there after one round; sizes in bytes, None is unknown.

    Attributes:
        allocated: by the card's books.
        reserved: likewise.
        host_tensors: storages of tensors on the host.
        traced: what Python allocated since the first look; None where sites were not asked for.
        resident: memory of the process, cache of the C library included.
    """

    allocated: int | None
    reserved: int | None
    host_tensors: int
    traced: int | None
    resident: int


class Rounds:
    """Looks after each of several runs that should leave the same.

    A floor that rose in each of the last four rounds is a leak, so that one which is there from the
    beginning is told after the fifth.

    Args:
        card: whose books are read.
        sites: trace allocations of Python from now on, which slows it down, so that leaks of the
            host are found, each with its site.
    """

    def __init__(self, card: Card, *, sites: bool = False) -> None:
        self._card = card
        self._sites = sites
        self._scope = Scope((card,), host=True)
        self._first: Moment | None = None
        self._by_site: list[dict[tracemalloc.Traceback, int]] = []
        self._started = False
        self.rounds: list[Round] = []

    def __enter__(self) -> Rounds:
        if self._sites and not tracemalloc.is_tracing():
            tracemalloc.start(_FRAMES)
            self._started = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._started:
            tracemalloc.stop()

    def look(self) -> tuple[Leak, ...]:
        """Look after a round; what is known to leak by now, the largest first.

        Cycles are collected before, since they come and go with the collector.
        """
        gc.collect()
        self.rounds.append(self._round())
        if self._sites:
            self._by_site = [*self._by_site[-_GROWTHS:], self._traced_by_site()]
        if self._first is None:
            self._first = look(self._scope)
        return self._leaks(self._first)

    def lines(self) -> list[str]:
        """For people: the floor of each round."""
        return [
            f"round {at}: {_size(each.allocated)} allocated, {_size(each.reserved)} reserved, "
            f"{format_bytes(each.host_tensors)} in tensors on the host"
            + (f", {format_bytes(each.traced)} by Python" if each.traced is not None else "")
            + f", {format_bytes(each.resident)} resident"
            for at, each in enumerate(self.rounds, start=1)
        ]

    def _round(self) -> Round:
        reading = self._card.read()
        host = alive(Scope((), host=True), gc.get_objects()).values()
        return Round(
            allocated=reading.allocated,
            reserved=reading.reserved,
            host_tensors=sum(each.size for each in host if each.device.type == "cpu"),
            traced=tracemalloc.get_traced_memory()[0] if self._sites else None,
            resident=int(psutil.Process().memory_info().rss),
        )

    def _leaks(self, first: Moment) -> tuple[Leak, ...]:
        newest = self.rounds[-_GROWTHS - 1 :]
        card = _always_grew([each.allocated for each in newest])
        host = _always_grew([each.host_tensors for each in newest])
        leaks = []
        if card or host:
            stayed = what_stayed(first).leaks
            leaks = [each for each in stayed if (host if each.device == "cpu" else card)]
        leaks += self._host_leaks()
        return tuple(sorted(leaks, key=lambda leak: -leak.bytes))

    def _host_leaks(self) -> list[Leak]:
        """Sites of which each of the last rounds left more."""
        if len(self._by_site) <= _GROWTHS:
            return []
        oldest, newest = self._by_site[0], self._by_site[-1]
        return [
            _of_host(trace, size - oldest.get(trace, 0))
            for trace, size in newest.items()
            if _always_grew([each.get(trace, 0) for each in self._by_site], least=_LEAST)
        ]

    def _traced_by_site(self) -> dict[tracemalloc.Traceback, int]:
        shot = tracemalloc.take_snapshot().filter_traces((_HERE, _OWN))
        return {each.traceback: each.size for each in shot.statistics("traceback")}


def _always_grew(sizes: list[int | None], *, least: int = 1) -> bool:
    """Over so many rounds, by `least` bytes in each."""
    if len(sizes) <= _GROWTHS:
        return False
    return all(
        old is not None and new is not None and new - old >= least for old, new in pairwise(sizes)
    )


def _of_host(trace: tracemalloc.Traceback, size: int) -> Leak:
    each = format_bytes(size // _GROWTHS)
    chain = (f"each of the last {_GROWTHS} rounds left {each} more",)
    return Leak(size, None, None, "cpu", Hold.HOST, chain, innermost(trace))


def _size(size: int | None) -> str:
    return "unknown" if size is None else format_bytes(size)
