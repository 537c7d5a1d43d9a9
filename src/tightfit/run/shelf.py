"""Several models on one card: who may stay, and who makes room for whom."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tightfit.plan.eviction import Tenant, evict

_REMEMBERED = 256
_OFTEN = 0.5


class Model(Protocol):
    """What the shelf knows of a model."""

    @property
    def taken(self) -> int:
        """Bytes of the card that its weights take now."""

    def rest(self) -> int:
        """Let the card go, if it is not at work; bytes that came free. It comes back by itself."""


@dataclass
class Shelf:
    """The models of one card.

    Before a model runs it says how much it would like to have, and others rest until that is
    there: those that were not used for longest go first. A model that is used again and again
    between two calls of this one is not sent away for comfort: both stream, or share the card as
    it comes. Whoever is at work stays.

    Attributes:
        room: bytes of the card that are free now, within the budget.
        models: by name.
        notes: who went for whom.
    """

    room: Callable[[], int]
    models: dict[str, Model] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _calls: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def comes(self, name: str, wanted: Callable[[], int]) -> int:
        """`name` is about to run and would like `wanted` bytes more; how many others gave.

        Whatever is given helps: it runs with less, too. It is only asked where others are there.
        """
        with self._guard:
            self._calls.append(name)
            around = self._around(name)
            used = {other: at for at, other in enumerate(self._calls)}
        idle = [other for other in self.models if other != name and other not in around]
        if not any(self.models[other].taken for other in idle):
            return 0
        size, free = wanted(), self.room()
        return 0 if size <= free else self._let_rest(name, size, free, idle, used)

    def needs(self, name: str, wanted: int | None) -> int:
        """`name` cannot run without `wanted` bytes, None where nobody knows; what came free."""
        with self._guard:
            used = {other: at for at, other in enumerate(self._calls)}
        free = self.room()
        idle = [other for other in self.models if other != name]
        return self._let_rest(name, wanted, free, idle, used)

    def _let_rest(
        self, name: str, wanted: int | None, free: int, idle: list[str], used: dict[str, int]
    ) -> int:
        tenants = [
            Tenant(other, self.models[other].taken, float(used.get(other, -1))) for other in idle
        ]
        chosen = [] if wanted is None else list(evict(wanted, free, tenants).go)
        longest = sorted(tenants, key=lambda tenant: tenant.last_used)
        chosen += [tenant.name for tenant in longest if tenant.name not in chosen]
        freed = 0
        for other in chosen:  # who was chosen may be at work, and give nothing
            if wanted is not None and free + freed >= wanted:
                break
            gave = self.models[other].rest() if self.models[other].taken else 0
            freed += gave
            if gave and (note := f"`{other}` rests while `{name}` runs") not in self.notes:
                self.notes.append(note)
        return freed

    def _around(self, name: str) -> frozenset[str]:
        """Models that are mostly used between two calls of `name`."""
        gaps: list[set[str]] = []
        since: set[str] | None = None
        for other in self._calls:
            if other == name:
                if since is not None:
                    gaps.append(since)
                since = set()
            elif since is not None:
                since.add(other)
        if not gaps:
            return frozenset()
        others = set().union(*gaps)
        return frozenset(
            other for other in others if sum(other in gap for gap in gaps) >= _OFTEN * len(gaps)
        )
