"""How a module is called: whole, or with fewer weights on the card, or a batch in two halves."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tightfit.card import Reading
from tightfit.errors import MemoryShortage
from tightfit.plan.streaming.residency import Mode
from tightfit.run.fitting.aside import drawn
from tightfit.run.fitting.halves import Halves
from tightfit.run.fitting.keeping import Keeping
from tightfit.run.fitting.lessons import Lessons
from tightfit.run.fitting.missed import none_missed
from tightfit.run.fitting.need import Call, need_of
from tightfit.run.fitting.placing import Weighed
from tightfit.run.fitting.pressure import Pressure
from tightfit.run.fitting.tries import Tries
from tightfit.run.ladder.once import once
from tightfit.run.ladder.release import empty_frames
from tightfit.run.ladder.rung import Stage

_WATCHED = 3
"""Calls of each shape whose peak is looked at."""
_HALVES = (
    "a batch was run in two halves, since there was no room for the whole even with everything "
    "streamed: results are those of the whole but for rounding"
)

MakesRoom = Callable[[Callable[[], int]], None]
TakesRoom = Callable[[], int]


@dataclass(frozen=True)
class Neighbours:
    """Whoever else is on the card, as a call knows them; see `Fitted`, where they are told."""

    makes_room: MakesRoom | None = None
    takes_room: TakesRoom | None = None


@dataclass(eq=False, repr=False)
class Calls:
    """The calls of one module.

    Attributes:
        keeping: where its weights are.
        lessons: what was learnt of its calls.
        tries: how one is made again.
        made: so many.
        halved: how often a batch was parted in two, since there was no room for it.
    """

    keeping: Keeping
    lessons: Lessons
    tries: Tries
    made: int = 0
    halved: int = 0
    _halved: dict[Hashable, int] = field(default_factory=dict)
    _looked: set[Hashable] = field(default_factory=set)
    _ordered: set[str] = field(default_factory=set)
    _pressure: Pressure = field(default_factory=Pressure)

    def moved(self) -> None:
        """Weights were moved between calls."""
        self._pressure.moved()

    def forget(self) -> None:
        """The module is another one now."""
        self._ordered.clear()
        self._looked.clear()
        self._halved.clear()
        self._pressure.moved()

    def make(self, call: Call, run: Callable[..., Any], beside: Neighbours) -> Any:
        """Whole; where there is no room for it even so, a batch in two halves."""
        key, drawn_again = self.lessons.key(call), drawn(call.given)
        halves = None if key is None else self._known_halves(key, call)
        if halves is None:
            try:
                return self._whole(call, run, beside, drawn_again)
            except MemoryShortage as shortage:
                halves = self._halves_of(call)
                if halves is None:
                    raise
                empty_frames(shortage)
            drawn_again()
        room = self.keeping.supply_now().room
        parts = [self.make(part, run, beside) for part in halves.parts()]
        value = self._joined(halves, parts)
        if not self.halved:
            self.tries.note(_HALVES)
        self.halved += 1
        key = self._told(call)
        self._halved[key] = max(room, self._halved.get(key, 0))
        return value

    def _whole(
        self,
        call: Call,
        run: Callable[..., Any],
        beside: Neighbours,
        drawn_again: Callable[[], None],
    ) -> Any:
        keeping, lessons = self.keeping, self.lessons
        card = keeping.card
        key, arriving = self._told(call), call.arriving()
        if beside.makes_room is not None:
            beside.makes_room(lambda: keeping.lacks(lessons.needs[key], arriving))

        def made() -> Any:
            args, kwargs = call.args, dict(call.kwargs)
            if not call.is_there:
                args, kwargs = tree_map(self._to_card, (args, kwargs))
            with lessons.tuners.same_strengths(), self._nothing_missed(key):
                return self._run(call.method, run, args, kwargs)

        def first() -> Any:
            keeping.call = self.made
            now, moved = card.read(), len(keeping.changes)
            lessons.lacked(self._pressure.found(now))
            need = lessons.needs[key]
            keeping.settle(need, arriving, now)
            if len(keeping.changes) > moved:
                self._pressure.moved()
                now = card.read()
            if need.runs < _WATCHED:
                card.reset_peaks()
                now = card.read()
            self._pressure.begins(key, now)
            value = made()
            if need.runs < _WATCHED:
                lessons.saw(key, self._taken(now, arriving))
            return value

        def again(less: int, mode: Mode) -> Any:
            drawn_again()
            self._pressure.moved()
            need = lessons.needs[key]
            keeping.lower(need, arriving, less, mode)
            value = made()
            lessons.needs[key] = lessons.needs[key].with_room(less)
            return value

        stage = Stage("forward", f"Not enough memory to run {self._name}.")
        while True:
            try:
                return self.tries.held(first, again, stage, call=self.made)
            except MemoryShortage as shortage:
                if beside.takes_room is None or not beside.takes_room():
                    raise
                empty_frames(shortage)
            drawn_again()

    def _run(
        self, method: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        session = self.keeping.session
        if session is None or method == "forward":
            return run(*args, **kwargs)
        session.hide_own()
        return session.whole(run, args, kwargs)

    def _to_card(self, leaf: object) -> object:
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
            return leaf.to(self.keeping.card.device)
        return leaf

    @contextmanager
    def _nothing_missed(self, key: Hashable) -> Iterator[None]:
        """Where nobody knows which weights are used when, the first call of each placing is looked
        at."""
        place = (key, len(self.keeping.changes))
        if self.keeping.weighed.order is not None or place in self._looked:
            yield
            return
        with none_missed(self.keeping.module):
            yield
        self._looked.add(place)

    def _taken(self, before: Reading, arriving: int) -> int | None:
        """By the call that is over, beside `arriving` bytes of inputs that were brought for it."""
        peak = self.keeping.card.read().peak_allocated
        if peak is None or before.allocated is None:
            return None
        return peak - before.allocated - self.keeping.unpacking - arriving

    def _told(self, call: Call) -> Hashable:
        """Under which key the need of `call` is known; it is found where there is none yet.

        So is the order in which it uses the weights: where there is none, or where others may be
        used than before, since adapters were switched on, or another method is called.
        """
        key = self.lessons.key(call)
        if key is not None:
            return key
        keeping = self.keeping
        known = keeping.weighed.order
        with nullcontext() if keeping.session is None else keeping.session.asleep():
            ask = known is None or bool(self.lessons.tuners.layers)
            ask |= call.method not in self._ordered
            key, order = self.lessons.learn(call, order=ask)
        self._ordered.add(call.method)
        if order is not None and known is not None:
            more = set(order.foreign) - set(known.foreign)
            order = replace(order, foreign=(*known.foreign, *more)) if more else None
        if order is not None:
            keeping.close()
            keeping.weighed = Weighed.of(keeping.module, order, most=keeping.card.most_at_once)
        return key

    def _halves_of(self, call: Call) -> Halves | None:
        """Where two halves are the whole, but for rounding, and there would be room for parts."""
        keeping = self.keeping
        if keeping.terms.fixed is not None:
            return None
        with nullcontext() if keeping.session is None else keeping.session.asleep():
            found = Halves.of(keeping.module, call)
            if found is None:
                return None
            least = need_of(keeping.module, found.smallest, keeping.card)
        fits = keeping.has_room(least, found.smallest.arriving(), beside=found.gives)
        return found if fits else None

    def _known_halves(self, key: Hashable, call: Call) -> Halves | None:
        """Where such a call did not fit as a whole, and there is no more room now."""
        room = self._halved.get(key)
        if room is None or self.keeping.supply_now().room > room:
            return None
        return Halves.like(call)

    def _joined(self, halves: Halves, parts: list[Any]) -> Any:
        """What both gave; where there is no room for that beside the weights, these go first."""
        keeping = self.keeping
        values, failure = once(lambda: halves.join(parts), keeping.card, keeping.keepsakes)
        if not values and keeping.rest():
            values, failure = once(lambda: halves.join(parts), keeping.card, keeping.keepsakes)
        if values:
            return values[0]
        raise MemoryShortage(
            f"Not enough memory to join what two halves of a batch gave in {self._name}.",
            figures=f"{failure}.",
        )

    @property
    def _name(self) -> str:
        return type(self.keeping.module).__name__
