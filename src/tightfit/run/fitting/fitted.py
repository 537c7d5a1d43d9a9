"""A module that fits on its card, call after call, whatever else happens there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from tightfit.allocators import ALIGNMENT
from tightfit.card import Card, Reading
from tightfit.errors import MemoryShortage, UsageError
from tightfit.place.streaming.home import bring_home
from tightfit.place.streaming.streamed import Streaming
from tightfit.plan.plan import Plan
from tightfit.plan.slack import FRAGMENTS
from tightfit.plan.streaming.residency import Mode
from tightfit.run.fitting.alterations import Alterations
from tightfit.run.fitting.aside import drawn
from tightfit.run.fitting.entries import Entries
from tightfit.run.fitting.keeping import PARTS, Change, Keeping, Terms
from tightfit.run.fitting.lora import check_loading
from tightfit.run.fitting.missed import none_missed, refuse_made_of_nothing
from tightfit.run.fitting.need import Call, Need, need_and_order, need_of
from tightfit.run.fitting.placing import Weighed
from tightfit.run.fitting.pressure import Pressure
from tightfit.run.fitting.tuners import Tuners, written
from tightfit.run.ladder.ladder import Ladder
from tightfit.run.ladder.once import once
from tightfit.run.ladder.rung import Attempt, Rung, Stage
from tightfit.units import MIB, format_bytes
from tightfit.weigh.tensors import weights

_WATCHED = 3
"""Calls of each shape whose peak is looked at."""
_ALIKE = 3
"""Calls that differ in integers alone and need the same, after which others are taken to."""


@dataclass(eq=False, repr=False)
class Fitted:
    """One module, its card, and where its weights are.

    Attributes:
        module: the user's, to be called as ever.
        card: where it computes.
        terms: what was asked for.
        attempts: calls that ran out of memory, and what was tried then.
        notes: what was found on the way.
        calls: that were made.
    """

    module: nn.Module
    card: Card
    terms: Terms
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    calls: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _needs: dict[Hashable, Need] = field(default_factory=dict)
    _alike: dict[Hashable, list[Hashable]] = field(default_factory=dict)
    _looked: set[Hashable] = field(default_factory=set)
    _pressure: Pressure = field(default_factory=Pressure)
    _inside: bool = False
    _keeping: Keeping | None = None
    _entries: Entries | None = None
    _alterations: Alterations | None = None
    _altered: bool = False
    _like: tuple[Call, Hashable, int] | None = None
    _paths: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Nothing is placed yet."""
        self._tuners = Tuners(self.module)

    def __repr__(self) -> str:
        name, there = type(self.module).__name__, "no weights there"
        if self._keeping is not None and self._keeping.session is not None:
            there = f"{format_bytes(self._keeping.session.resident_bytes)} resident"
        return f"Fitted({name} on {self.card.name}: {there}, {self.calls} calls)"

    @property
    def plan(self) -> Plan:
        """What the weights are placed by."""
        plan = self._kept.plan
        if plan is None:
            raise UsageError(f"`{type(self.module).__name__}` has its weights on the host now.")
        return plan

    @property
    def session(self) -> Streaming:
        """What streams them."""
        session = self._kept.session
        if session is None:
            raise UsageError(f"`{type(self.module).__name__}` has its weights on the host now.")
        return session

    @property
    def changes(self) -> list[Change]:
        """Each time that weights were placed anew."""
        return self._kept.changes

    @property
    def _kept(self) -> Keeping:
        if self._keeping is None:
            raise UsageError(f"`{type(self.module).__name__}` is not fitted.")
        return self._keeping

    def explain(self) -> str:
        """The plan in a screenful, then each time that weights were moved, and what was found."""
        lines = [self.plan.explain()]
        for change in self.changes:
            before, after = map(format_bytes, change.resident_bytes)
            when = "at the start" if change.call is None else f"before call {change.call}"
            lines.append(f"{when}: {before} -> {after} resident, since {change.why}.")
        return "\n".join([*lines, *self.notes])

    def open(self, example: Call | None = None) -> None:
        """Place the weights, for a call like `example` where there is one."""
        _refuse_inference_tensors(self.module)
        need, order = Need(), None
        if example is not None:
            need, order = need_and_order(self.module, example, self.card)
            self._needs[self._key(example)] = need
            self._say(need)
            self._remember(example)
        weighed = Weighed.of(self.module, order)
        self._paths = _paths_of(self.module)
        arriving = 0 if example is None else example.arriving()
        self._keeping = keeping = Keeping(self.module, self.card, self.terms, weighed)
        try:
            self._held(
                lambda: keeping.replan(need, arriving, why="it was fitted"),
                lambda less, mode: keeping.lower(need, arriving, less, mode),
                Stage("load", f"Not enough memory to place {weighed.name}."),
            )
            self._open_ways()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """The module is as it was, on the host; harmless when repeated."""
        with self._lock:
            if self._inside:
                raise UsageError(f"`{type(self.module).__name__}` is being called: unfit it after.")
            self._to_host()

    def _open_ways(self) -> None:
        """From here on, calls and what changes weights come here first."""
        self._entries = Entries(self.module, self._enter)
        self._alterations = Alterations(self.module, self._alter, self._write)

    def _to_host(self) -> None:
        """Everything that is the module's is on the host, also what it has got since."""
        ours, self._entries = self._entries, None
        if ours is not None:
            ours.close()
        if self._alterations is not None:
            self._alterations.close()
        if self._keeping is not None:
            self._keeping.close()
        if ours is not None:
            bring_home(self.module, self.card.device)

    def _alter(
        self,
        method: str,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A method that changes which weights there are, or what they are.

        The weights are placed again at once, for a call like the last one, also after an error.
        """
        with self._lock:
            if method == "load_lora_adapter":
                check_loading(self.module, args, kwargs)
            try:
                value = self._write(method, run, args, kwargs)
            except Exception:
                self._place_again(f"`{method}` failed")
                raise
            self._place_again(f"`{method}` was called")
            return value

    def _write(
        self,
        method: str,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """What writes to weights finds them on the host, where they are until the next call."""
        with self._lock:
            name = type(self.module).__name__
            if self._inside:
                raise UsageError(f"`{name}` is being called: `{method}` has to wait until after.")
            if self.terms.fixed is not None:
                raise UsageError(
                    f"`{method}` would change the weights of `{name}`, which lie as a plan of "
                    "their own says: do that before, and plan again."
                )
            self._altered = True
            self._to_host()
            try:
                return written(self.module, method, lambda: run(*args, **kwargs))
            finally:
                self._open_ways()

    def _place_again(self, why: str) -> None:
        """Where there is no room, the next call will say so."""
        if not self._altered or self._entries is None:
            return
        like, key, arriving = self._like or (None, None, 0)
        need = self._renew(like, key)
        keeping = self._kept
        try:
            self._held(
                lambda: keeping.replan(need, arriving, why=why),
                lambda less, mode: keeping.lower(need, arriving, less, mode),
                Stage("load", f"Not enough memory to place {keeping.weighed.name}."),
            )
        except MemoryShortage as error:
            self._note(f"{why}, and there was no room for the weights then: {error.what}")

    def _notice(self, call: Call) -> None:
        """Weigh the module anew where it has other weights than when it was weighed."""
        keeping = self._kept
        if self.terms.fixed is not None:
            return
        session = keeping.session
        differs = _paths_of(self.module) != self._paths if session is None else session.differs
        if not differs and not self._altered:
            return
        try:
            if session is not None and not self._altered:
                refuse_made_of_nothing(session.newcomers())
                Tuners(self.module).refuse_fused_unseen(self._tuners)
        finally:
            self._altered = True
        self._renew(call, call.key())

    def _renew(self, like: Call | None, key: Hashable) -> Need:
        """The module as it is now is weighed, with all of it on the host.

        For calls such as `like`; what those need is known under `key`, and is the answer.
        """
        self._to_host()
        need, order = Need(), None
        try:
            _refuse_inference_tensors(self.module)
            for known in (self._needs, self._alike, self._looked):
                known.clear()
            self._pressure.moved()
            self._tuners = Tuners(self.module)
            if like is not None:
                need, order = need_and_order(self.module, like, self.card)
                self._needs[(self._tuners.active, key)] = need
                self._say(need)
            self._kept.weighed = Weighed.of(self.module, order)
            self._paths = _paths_of(self.module)
            self._altered = False
        finally:
            self._open_ways()
        return need

    def _remember(self, call: Call) -> None:
        """What calls are like, if that can be kept without keeping what they were given."""
        key = call.key()
        if (self._like is None or self._like[1] != key) and call.is_plain:
            self._like = call.without_values(), key, call.arriving()

    def _key(self, call: Call, *, numbers: bool = True) -> Hashable:
        """Equal for calls that need the same, with the same adapters."""
        return self._tuners.active, call.key(numbers=numbers)

    def _enter(
        self,
        method: str,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call from outside, or, from within one, what it would have been."""
        with self._lock:
            if self._inside:
                return run(*args, **kwargs)
            self._inside = True
            try:
                call = Call(method, args, kwargs)
                self._notice(call)
                value = self._call(call, run)
                self._remember(call)
                return value
            except BaseException:
                if self._keeping is not None and self._keeping.session is not None:
                    self._keeping.session.end_calls()
                raise
            finally:
                self._inside = False
                self.calls += 1

    def _call(self, call: Call, run: Callable[..., Any]) -> Any:
        keeping = self._kept
        key, arriving = self._told(call), call.arriving()
        drawn_again = drawn(call.given)

        def made() -> Any:
            args, kwargs = call.args, dict(call.kwargs)
            if not call.is_there:
                args, kwargs = tree_map(self._to_card, (args, kwargs))
            with self._tuners.same_strengths(), self._nothing_missed(key):
                return run(*args, **kwargs)

        def first() -> Any:
            keeping.call = self.calls
            now, moved = self.card.read(), len(keeping.changes)
            self._look_back(now)
            need = self._needs[key]
            keeping.settle(need, arriving, now)
            if len(keeping.changes) > moved:
                self._pressure.moved()
                now = self.card.read()
            if need.runs < _WATCHED:
                self.card.reset_peaks()
                now = self.card.read()
            self._pressure.begins(key, now)
            value = made()
            if need.runs < _WATCHED:
                self._seen(key, now, arriving)
            return value

        def again(less: int, mode: Mode) -> Any:
            drawn_again()
            self._pressure.moved()
            need = self._needs[key]
            keeping.lower(need, arriving, less, mode)
            value = made()
            self._needs[key] = self._needs[key].with_room(less)
            return value

        name = type(self.module).__name__
        return self._held(first, again, Stage("forward", f"Not enough memory to run {name}."))

    def _held(
        self,
        first: Callable[[], Any],
        again: Callable[[int, Mode], Any],
        stage: Stage,
    ) -> Any:
        """The value of `first`, else of `again` with fewer weights on the card; the same bits.

        `again` is told how many bytes of the room to leave out, and the mode. Raises
        `MemoryShortage` where the card is full even with everything streamed.
        """
        if self.terms.fixed is not None:
            return first()
        values, failure = once(first, self.card, self._kept.keepsakes)
        if values:
            return values[0]
        self._note(f"{stage.name} {self.calls} ran out of memory and was done again: {failure}")
        room = self._kept.supply_now().room

        def rungs() -> Iterator[Rung[Any]]:
            for part in PARTS:
                less = max(room // part, min(MIB, room // PARTS[1]))
                yield Rung(f"{format_bytes(less)} left out", partial(again, less, self.terms.mode))
            yield Rung("everything streamed", partial(again, 0, "none"))

        ladder = Ladder(
            self.card,
            self.terms.supply.budget,
            self.terms.supply.reserve,
            module=self.module,
            module_name=type(self.module).__name__,
            ask=False,
            attempts=self.attempts,
            notes=self.notes,
        )
        return ladder.climb(stage, rungs())

    def _to_card(self, leaf: object) -> object:
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
            return leaf.to(self.card.device)
        return leaf

    @contextmanager
    def _nothing_missed(self, key: Hashable) -> Iterator[None]:
        """Where nobody knows which weights are used when, the first call of each placing is looked
        at."""
        place = (key, len(self._kept.changes))
        if self._kept.weighed.order is not None or place in self._looked:
            yield
            return
        with none_missed(self.module):
            yield
        self._looked.add(place)

    def _told(self, call: Call) -> Hashable:
        """Under which key the need of `call` is known; it is found where there is none yet.

        An integer may be a size, so each is looked at: until a few made no difference, as times
        of steps do.
        """
        key, alike = self._key(call), self._key(call, numbers=False)
        if key in self._needs:
            return key
        if alike in self._needs:
            return alike
        self._learn(key, call)
        if alike != key:
            seen = self._alike.setdefault(alike, [])
            seen.append(key)
            needs = [self._needs[each] for each in seen]
            if len(needs) >= _ALIKE and len({each.problem or each.dry for each in needs}) == 1:
                self._needs[alike] = max(needs, key=lambda each: (each.allocated or 0, each.slack))
        return key

    def _learn(self, key: Hashable, call: Call) -> None:
        """What a call of new shapes needs, and in which order it uses the weights."""
        keeping = self._kept
        known = keeping.weighed.order
        with nullcontext() if keeping.session is None else keeping.session.asleep():
            order = None
            if known is None or self._tuners.layers:
                self._needs[key], order = need_and_order(self.module, call, self.card)
            else:
                self._needs[key] = need_of(self.module, call, self.card)
            self._say(self._needs[key])
        if order is not None and known is not None:  # with other adapters than were seen before
            more = set(order.foreign) - set(known.foreign)
            order = replace(order, foreign=(*known.foreign, *more)) if more else None
        if order is not None:
            keeping.close()
            keeping.weighed = Weighed.of(self.module, order)

    def _seen(self, key: Hashable, before: Reading, arriving: int) -> None:
        """Learn from a call that held, for which `arriving` bytes of inputs were brought."""
        need, allocated = self._needs[key], self._needs[key].allocated
        after = self.card.read()
        if after.peak_allocated is not None and before.allocated is not None:
            taken = after.peak_allocated - before.allocated - self._kept.unpacking
            allocated = max(allocated or 0, taken - arriving)
        self._needs[key] = replace(
            need, dry=need.dry or allocated, allocated=allocated, runs=need.runs + 1
        )

    def _look_back(self, now: Reading) -> None:
        """Give calls such as the one before more slack, if that had too little."""
        kind = self._pressure.found(now)
        if kind is None or kind not in self._needs:
            return
        grain = self.card.grain if self.card.allocator in FRAGMENTS else ALIGNMENT
        self._needs[kind] = self._needs[kind].lacking(grain)
        self._note(
            "the allocator had to give its cache back, or refused a library its scratch: the "
            "next call of these shapes has more room"
        )

    def _say(self, need: Need) -> None:
        if need.problem is not None:
            self._note(
                "what a call needs could not be told beforehand, so a quarter of the room is kept "
                f"until one was seen: {need.problem}"
            )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _paths_of(module: nn.Module) -> frozenset[str]:
    return frozenset(held.path for held in weights(module))


def _refuse_inference_tensors(module: nn.Module) -> None:
    """They cannot be exchanged, nor given back, outside of that mode."""
    path = next((held.path for held in weights(module) if held.tensor.is_inference()), None)
    if path is not None:
        raise UsageError(
            f"`{path}` was made in torch.inference_mode(), and such weights cannot be given "
            "back: load the module outside of it."
        )
