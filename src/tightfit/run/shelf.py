"""Several models on one card: who may stay, and who makes room for whom."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tightfit.plan.eviction import Tenant, evict

_REMEMBERED = 1024
"""Calls: several pictures of fifty steps, with a control network between them."""
_SOON = 2.0
"""Seconds: what is needed again within them is not sent away for comfort."""
_BOTH_WAYS = 2
"""Calls: in more than so many, a model that streams copies more than two that change places."""


class Model(Protocol):
    """What the shelf knows of a model."""

    @property
    def taken(self) -> int:
        """Bytes of the card that its weights take now."""

    def rest(self) -> int:
        """Let the card go, if it is not at work; bytes that came free. It comes back by itself."""


@dataclass(frozen=True)
class Outlook:
    """When a model is expected to be used again, as it was the last time.

    Attributes:
        calls: that the one that is about to run makes until then, this one included.
        seconds: until then.
    """

    calls: int
    seconds: float


@dataclass
class Shelf:
    """The models of one card.

    Before a model runs it says how much it would like to have, and others rest until that is
    there: first those that are expected again last, and before them those of which nobody knows,
    that were not used for longest. What is needed again soon is not sent away for comfort: not
    within two seconds, nor before it could be back, nor where both would copy more than the one
    that streams meanwhile. Whoever is at work stays.

    Attributes:
        room: bytes of the card that are free now, within the budget.
        models: by name.
        guests: what lies here for models of other cards, by their names; it goes last, and never
            for comfort.
        notes: who went for whom.
        link: bytes per second from the host to the card; None is unknown.
        clock: seconds.
    """

    room: Callable[[], int]
    models: dict[str, Model] = field(default_factory=dict)
    guests: dict[str, Model] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    link: float | None = None
    clock: Callable[[], float] = time.monotonic
    _calls: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def comes(self, name: str, wanted: Callable[[], int]) -> int:
        """`name` is about to run and would like `wanted` bytes more; how many others gave.

        Whatever is given helps: it runs with less, too. It is only asked where others are there.
        """
        with self._guard:
            self._calls.append((name, self.clock()))
        there = self._there(name)
        if not there:
            return 0
        size, free = wanted(), self.room()
        if size <= free:
            return 0
        willing = [other for other in there if self._pays(other, self.outlook(name, other))]
        return self._let_rest(name, size, free, willing)

    def needs(self, name: str, wanted: int | None) -> int:
        """`name` cannot run without `wanted` bytes, None where nobody knows; what came free."""
        free = self.room()
        freed = self._let_rest(name, wanted, free, self._there(name))
        return freed + self._guests_go(name, None if wanted is None else wanted - free - freed)

    def gives(self, name: str | None, excess: int) -> int:
        """Others than `name` rest until `excess` bytes came free; how many did."""
        freed = self._let_rest(name, excess, 0, self._there(name))
        return freed + self._guests_go(name, excess - freed)

    def outlook(self, name: str, other: str) -> Outlook | None:
        """When `other` is used again, seen from a call of `name` that is about to be made.

        As it was the last time that `name` was called as often since `other` was used; None where
        that never happened.
        """
        with self._guard:
            calls = tuple(self._calls)
        now: float | None = None  # of the segment that is looked at: when it ends
        since: list[float] = []  # calls of `name` in it, the latest first
        called = 0
        for who, at in reversed(calls):
            if who == name:
                since.append(at)
            elif who == other:
                if now is None:
                    called = max(1, len(since))
                elif len(since) >= called:
                    return Outlook(len(since) - called + 1, now - since[-called])
                now, since = at, []
        return None

    def _pays(self, other: str, outlook: Outlook | None) -> bool:
        """Whether to send `other` away and bring it back copies less than to stream meanwhile."""
        if outlook is None:
            return True
        back = self.models[other].taken / self.link if self.link else 0.0
        return outlook.calls > _BOTH_WAYS and outlook.seconds > max(_SOON, back)

    def _there(self, name: str | None) -> list[str]:
        """Others that take something of the card."""
        found = list(self.models.items())
        return [other for other, model in found if other != name and model.taken]

    def _let_rest(self, name: str | None, wanted: int | None, free: int, willing: list[str]) -> int:
        order = self._first_to_go(name, willing)
        tenants = [
            Tenant(other, self.models[other].taken, float(at)) for at, other in enumerate(order)
        ]
        chosen = [] if wanted is None else list(evict(wanted, free, tenants).go)
        chosen += [other for other in order if other not in chosen]
        freed = 0
        for other in chosen:  # who was chosen may be at work, and give nothing
            if wanted is not None and free + freed >= wanted:
                break
            gave = self.models[other].rest() if self.models[other].taken else 0
            freed += gave
            runs = f"while `{name}` runs" if name is not None else "for want of budget"
            if gave and (note := f"`{other}` rests {runs}") not in self.notes:
                self.notes.append(note)
        return freed

    def _guests_go(self, name: str | None, lacking: int | None) -> int:
        """Until `lacking` bytes came free; None is all of them."""
        freed = 0
        for guest, model in list(self.guests.items()):
            if lacking is not None and freed >= lacking:
                break
            gave = model.rest() if model.taken else 0
            freed += gave
            runs = f"while `{name}` runs" if name is not None else "for want of budget"
            if gave and (note := f"`{guest}` streams from the host {runs}") not in self.notes:
                self.notes.append(note)
        return freed

    def _first_to_go(self, name: str | None, others: list[str]) -> list[str]:
        with self._guard:
            used = {other: at for at, (other, _) in enumerate(self._calls)}

        def key(other: str) -> tuple[float, int]:
            outlook = None if name is None else self.outlook(name, other)
            until = math.inf if outlook is None else outlook.seconds
            return -until, used.get(other, -1)

        return sorted(others, key=key)
