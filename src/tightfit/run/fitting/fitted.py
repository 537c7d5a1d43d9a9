"""A module that fits on its card, call after call, whatever else happens there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from tightfit.card import Card, Reading
from tightfit.errors import MemoryShortage, UsageError
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.plan.plan import Plan
from tightfit.plan.streaming.residency import Mode, Residency
from tightfit.plan.supply import Supply
from tightfit.run.fitting.aside import drawn
from tightfit.run.fitting.entries import Entries
from tightfit.run.fitting.missed import none_missed
from tightfit.run.fitting.need import Call, Need, need_of, order_of
from tightfit.run.fitting.placing import Weighed, plan_call, supply_of_reading, taken_by, working_of
from tightfit.run.ladder.keepsakes import Keepsakes
from tightfit.run.ladder.ladder import Ladder
from tightfit.run.ladder.once import once
from tightfit.run.ladder.release import empty_frames
from tightfit.run.ladder.rung import Attempt, Rung, Stage
from tightfit.units import MIB, format_bytes
from tightfit.weigh.tensors import weights

_BREATH = (64, 256 * MIB)
"""Of the room, one part in so many is left free, and at most so many bytes: what other programs
and callers take and give back from call to call must not move weights each time."""
_KERNELS = 128 * MIB
"""What CUDA takes of the card, beside every allocator, when kernels are first used: 76 to 172 MiB
were seen. Until the first call is over, so much is left free at least."""
_PATIENCE = (3, 96)
"""Calls in a row that must find more room before weights are brought up for it, at first; and at
most, once it was seen that what they took was needed again soon."""
_PARTS = (32, 8, 3)
"""Of the room, what is left out at the tries after one that ran out of memory."""
_WATCHED = 3
"""Calls of each shape whose peak is looked at."""
_ALIKE = 3
"""Calls that differ in integers alone and need the same, after which others are taken to."""


@dataclass(frozen=True)
class Change:
    """One time that weights were placed anew.

    Attributes:
        call: the number of the call before which it was done, from 0; None is at the start.
        why: in words.
        resident_bytes: before and after.
    """

    call: int | None
    why: str
    resident_bytes: tuple[int, int]


@dataclass
class _Placement:
    """Where the weights are now."""

    plan: Plan
    residency: Residency
    taken: int


@dataclass(eq=False, repr=False)
class Fitted:
    """One module, its card, and where its weights are.

    Attributes:
        module: the user's, to be called as ever.
        card: where it computes.
        supply: what there is of it, with the user's budget.
        mode: see `tightfit.plan.streaming.residency`.
        fixed: a residency that is kept to, whatever happens; None is to follow the room.
        pins: which masters the driver holds in place.
        traces: what each step did is kept in `session`.
        changes: each time that weights were placed anew.
        attempts: calls that ran out of memory, and what was tried then.
        notes: what was found on the way.
        calls: that were made.
    """

    module: nn.Module
    card: Card
    supply: Supply
    mode: Mode = "auto"
    fixed: Plan | None = None
    pins: Pins = field(default_factory=Pins.none)
    traces: bool = False
    changes: list[Change] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    calls: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _needs: dict[Hashable, Need] = field(default_factory=dict)
    _alike: dict[Hashable, list[Hashable]] = field(default_factory=dict)
    _looked: set[Hashable] = field(default_factory=set)
    _inside: bool = False
    _more: int = 0
    _patience: int = _PATIENCE[0]
    _grew: bool = False
    _weighed: Weighed | None = None
    _session: Streaming | None = None
    _placement: _Placement | None = None
    _keepsakes: Keepsakes | None = None
    _entries: Entries | None = None

    def __repr__(self) -> str:
        name, there = type(self.module).__name__, "no weights there"
        if self._session is not None:
            there = f"{format_bytes(self._session.resident_bytes)} resident"
        return f"Fitted({name} on {self.card.name}: {there}, {self.calls} calls)"

    @property
    def plan(self) -> Plan:
        """What the weights are placed by."""
        if self._placement is None:
            raise UsageError(f"`{type(self.module).__name__}` is not fitted any more.")
        return self._placement.plan

    @property
    def session(self) -> Streaming:
        """What streams them."""
        if self._session is None:
            raise UsageError(f"`{type(self.module).__name__}` is not fitted any more.")
        return self._session

    def open(self, example: Call | None = None) -> None:
        """Place the weights, for a call like `example` where there is one."""
        _refuse_inference_tensors(self.module)
        order = None if example is None else order_of(self.module, example)
        need = Need() if example is None else need_of(self.module, example, self.card)
        if example is not None:
            self._needs[example.key()] = need
            self._say(need)
        self._weighed = Weighed.of(self.module, order)
        arriving = 0 if example is None else example.arriving()
        self._keepsakes = Keepsakes(self.module, device=self.card.device)
        try:
            self._held(
                lambda: self._replan(need, arriving, why="the start"),
                lambda less, mode: self._lower(need, arriving, less, mode),
                Stage("load", f"Not enough memory to place {self._weighed.name}."),
            )
            self._entries = Entries(self.module, self._enter)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """The module is as it was, on the host; harmless when repeated."""
        with self._lock:
            if self._inside:
                raise UsageError(f"`{type(self.module).__name__}` is being called: unfit it after.")
            if self._entries is not None:
                self._entries.close()
            self._end_session()
            self._entries = None

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
                return self._call(Call(method, args, kwargs), run)
            finally:
                self._inside = False
                self.calls += 1

    def _call(self, call: Call, run: Callable[..., Any]) -> Any:
        key, arriving = self._told(call), call.arriving()
        need = self._needs[key]
        drawn_again = drawn(call.given)

        def made() -> Any:
            args, kwargs = call.args, dict(call.kwargs)
            if not call.is_there:
                args, kwargs = tree_map(self._to_card, (args, kwargs))
            with self._nothing_missed(key):
                return run(*args, **kwargs)

        def first() -> Any:
            self._settle(need, arriving)
            if need.runs >= _WATCHED:
                return made()
            self.card.reset_peaks()
            before = self.card.read()
            value = made()
            self._seen(key, before, arriving)
            return value

        def again(less: int, mode: Mode) -> Any:
            drawn_again()
            self._lower(need, arriving, less, mode)
            value = made()
            self._needs[key] = replace(self._needs[key], slack=need.slack + less)
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
        assert self._keepsakes is not None
        if self.fixed is not None:
            return first()
        values, failure = once(first, self.card, self._keepsakes)
        if values:
            return values[0]
        self._note(f"{stage.name} {self.calls} ran out of memory and was done again: {failure}")
        room = self._supply().room

        def rungs() -> Iterator[Rung[Any]]:
            for part in _PARTS:
                less = max(room // part, MIB)
                yield Rung(f"{format_bytes(less)} left out", partial(again, less, self.mode))
            yield Rung("everything streamed", partial(again, 0, "none"))

        ladder = Ladder(
            self.card,
            self.supply.budget,
            self.supply.reserve,
            module=self.module,
            module_name=type(self.module).__name__,
            ask=False,
            attempts=self.attempts,
            notes=self.notes,
        )
        return ladder.climb(stage, rungs())

    def _lower(self, need: Need, arriving: int, less: int, mode: Mode) -> None:
        """Place the weights for a call with `less` bytes left out."""
        kept, self.mode = self.mode, mode
        try:
            self._replan(need, arriving, why="the card was full", less=less)
        finally:
            self.mode = kept

    def _to_card(self, leaf: object) -> object:
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
            return leaf.to(self.card.device)
        return leaf

    @contextmanager
    def _nothing_missed(self, key: Hashable) -> Iterator[None]:
        """Where nobody knows which weights are used when, the first call is looked at."""
        assert self._weighed is not None
        if self._weighed.order is not None or key in self._looked:
            yield
            return
        with none_missed(self.module):
            yield
        self._looked.add(key)

    def _told(self, call: Call) -> Hashable:
        """Under which key the need of `call` is known; it is found where there is none yet.

        An integer may be a size, so each is looked at: until a few made no difference, as times
        of steps do.
        """
        key, alike = call.key(), call.key(numbers=False)
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
        assert self._weighed is not None
        with nullcontext() if self._session is None else self._session.asleep():
            self._needs[key] = need_of(self.module, call, self.card)
            self._say(self._needs[key])
            order = order_of(self.module, call) if self._weighed.order is None else None
        if order is None:
            return
        self._end_session()
        self._weighed = Weighed.of(self.module, order)

    def _settle(self, need: Need, arriving: int) -> None:
        """Before a call: is there room for it, and has there been more for a while?"""
        if self._placement is None:
            self._replan(need, arriving, why="the first call of its kind, or one after a failure")
            return
        if self.fixed is not None:
            return
        now = self._supply()
        room = now.room
        working = (need.allocated or 0) + need.slack + arriving
        if need.allocated is None:
            working = 0
        if self._placement.taken + working > room:
            self._more = 0
            if self._grew:
                self._grew, self._patience = False, min(2 * self._patience, _PATIENCE[1])
            self._replan(need, arriving, why=f"{format_bytes(room)} are there for this call")
            return
        residency = self._placement.residency
        smallest = min((piece.bytes for piece in residency.streamed), default=0)
        spare = room - working - self._placement.taken - self._breath(room)
        worth = max(smallest, room // _BREATH[0])
        self._more = self._more + 1 if smallest and spare > worth else 0
        if self._more >= self._patience:
            self._more, self._grew = 0, True
            self._replan(need, arriving, why=f"{format_bytes(spare)} more are free")

    def _supply(self) -> Supply:
        """What there is now, our own weights apart."""
        ours = 0 if self._session is None else self._session.bytes
        return supply_of_reading(self.card.read(), self.supply, ours=ours)

    def _breath(self, room: int) -> int:
        if self.card.allocator == "exact":
            return 0
        part, most = _BREATH
        breath = min(room // part, most)
        if self.card.kind == "cuda" and not self.calls:
            breath = max(breath, min(_KERNELS, room // 8))
        return breath

    def _replan(self, need: Need, arriving: int, *, why: str, less: int = 0) -> None:
        """Place the weights anew for a call; `less` bytes of the room are left out.

        Raises `MemoryShortage` where not even streaming everything leaves it enough.
        """
        assert self._weighed is not None
        if self.fixed is not None:
            self._place(self.fixed, need, why)
            return
        room = self._supply().room
        shortage: MemoryShortage | None = None
        for more in (self._breath(room), 0, *(room // part for part in _PARTS)):
            supply = self._supply()
            offered = replace(supply, reserve=supply.reserve + less + more)
            plan = plan_call(self._weighed, need, offered, arriving=arriving, mode=self.mode)
            if not plan.fits:
                shortage = shortage or plan.shortage()
                continue
            wide = replace(supply, reserve=supply.reserve + less)
            try:
                self._place(plan, need, why, room=wide.room + wide.held - working_of(plan, need))
            except MemoryShortage as error:  # the allocator took more than was foreseen
                empty_frames(error)
                shortage = error
                continue
            return
        assert shortage is not None
        if need.allocated is None:  # the first call of its kind will tell: there may be room for it
            self._replan(replace(need, dry=0, allocated=0), arriving, why=why, less=less)
            return
        raise shortage

    def _place(self, plan: Plan, need: Need, why: str, *, room: int | None = None) -> None:
        """`room` is what reserved may come to while no call is under way."""
        residency = plan.stages[0].residency
        assert self._weighed is not None
        assert residency is not None
        before = 0 if self._placement is None else self._placement.residency.resident_bytes
        if self._placement is not None and residency == self._placement.residency:
            self._placement = _Placement(plan, residency, taken_by(plan, need))
            return
        self._placement = None
        self._looked.clear()
        if self._session is None:
            self._session = self._stack.enter_context(
                streamed(
                    self.module,
                    self.card,
                    residency,
                    self._weighed.blocks,
                    order=self._weighed.order,
                    pins=self.pins,
                    traces=self.traces,
                    room=room,
                )
            )
        else:
            self._session.change(residency, room=room)
        done = self._session.residency
        taken = taken_by(plan, need) - residency.bytes + done.bytes
        self._placement = _Placement(plan, residency, taken)
        self._keepsakes = Keepsakes(
            self.module, device=self.card.device, name=type(self.module).__name__
        )
        at = self.calls if self._entries is not None else None
        self.changes.append(Change(at, why, (before, done.resident_bytes)))

    def _end_session(self) -> None:
        self._placement = self._session = None
        self._stack.close()

    def _seen(self, key: Hashable, before: Reading, arriving: int) -> None:
        """Learn from a call that held, for which `arriving` bytes of inputs were brought."""
        need = self._needs[key]
        after = self.card.read()
        allocated, slack = need.allocated, need.slack
        if after.peak_allocated is not None and before.allocated is not None:
            allocated = max(allocated or 0, after.peak_allocated - before.allocated - arriving)
        refused = (after.refused_since(before) or 0) + after.retries - before.retries
        if refused > 0:
            slack += max(self.card.grain, (allocated or 0) // 16)
            self._note(
                "the allocator had to give its cache back, or refused a library its scratch: the "
                "next call of these shapes has more room"
            )
        self._needs[key] = replace(
            need, dry=need.dry or allocated, allocated=allocated, slack=slack, runs=need.runs + 1
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


def _refuse_inference_tensors(module: nn.Module) -> None:
    """They cannot be exchanged, nor given back, outside of that mode."""
    path = next((held.path for held in weights(module) if held.tensor.is_inference()), None)
    if path is not None:
        raise UsageError(
            f"`{path}` was made in torch.inference_mode(), and such weights cannot be given "
            "back: load the module outside of it."
        )
