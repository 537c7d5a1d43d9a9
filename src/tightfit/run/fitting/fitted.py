"""A module that fits on its card, call after call, whatever else happens there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakMethod

import torch
from torch import nn
from torch.utils._pytree import tree_map

from tightfit.card import Card, Reading
from tightfit.errors import MemoryShortage, UsageError
from tightfit.place.streaming.home import bring_home
from tightfit.place.streaming.streamed import Streaming
from tightfit.place.streaming.tables import forget_graphs
from tightfit.plan.budget import Budget
from tightfit.plan.plan import Plan
from tightfit.plan.streaming.residency import Mode
from tightfit.run.fitting.alterations import WRITTEN_AFTER, Alterations
from tightfit.run.fitting.aside import drawn
from tightfit.run.fitting.entries import Entries
from tightfit.run.fitting.halves import Halves
from tightfit.run.fitting.keeping import PARTS, Change, Keeping, Terms
from tightfit.run.fitting.lessons import Lessons
from tightfit.run.fitting.lora import check_loading
from tightfit.run.fitting.missed import none_missed, refuse_made_of_nothing
from tightfit.run.fitting.need import Call, Need, need_of
from tightfit.run.fitting.part_doors import PartDoors
from tightfit.run.fitting.placing import Weighed
from tightfit.run.fitting.pressure import Pressure
from tightfit.run.fitting.told_steps import ToldSteps
from tightfit.run.fitting.tuners import Tuners, written
from tightfit.run.ladder.ladder import Ladder
from tightfit.run.ladder.once import once
from tightfit.run.ladder.release import empty_frames
from tightfit.run.ladder.rung import Attempt, Rung, Stage
from tightfit.units import MIB, format_bytes
from tightfit.watch import Recorder
from tightfit.watch.events import Oom
from tightfit.watch.teller import Teller
from tightfit.weigh.tensors import weights

_KEPT = 4096
"""Events that are kept for whoever asks what happened, where nobody brought a recorder."""
_WATCHED = 3
"""Calls of each shape whose peak is looked at."""
_HALVES = (
    "a batch was run in two halves, since there was no room for the whole even with everything "
    "streamed: results are those of the whole but for rounding"
)


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
        halved: how often a batch was parted in two, since there was no room for it.
        makes_room: called at the beginning of each call from outside, before its weights are placed
            or stay. What it is given tells, when asked, the bytes of the card that the module would
            like to have beyond what its weights take now: all that may be resident, what the call
            needs, and inputs that are brought. (To tell may take a plan.)
            It may let other modules `rest`. It is called while this one is busy, so it may not wait
            for a thread that calls one; to `rest` never waits.
        takes_room: called where there was no room for a call, even with everything streamed; where
            it freed something (it says how many bytes), the call is made again.
        teller: tells `teller.recorder` what happens; another recorder may be put there at any time.
        turn: entered around each call from outside, and around what changes its weights. It may
            wait: this module is not busy yet.
    """

    module: nn.Module
    card: Card
    terms: Terms
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    calls: int = 0
    halved: int = 0
    makes_room: Callable[[Callable[[], int]], None] | None = None
    takes_room: Callable[[], int] | None = None
    turn: Callable[[], AbstractContextManager[object]] = nullcontext
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _halved: dict[Hashable, int] = field(default_factory=dict)
    _looked: set[Hashable] = field(default_factory=set)
    _pressure: Pressure = field(default_factory=Pressure)
    _inside: bool = False
    _keeping: Keeping | None = None
    _entries: Entries | None = None
    _alterations: Alterations | None = None
    _part_doors: PartDoors | None = None
    _ordered: set[str] = field(default_factory=set)
    _opened: bool = False
    _altered: bool = False
    _paths: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Nothing is placed yet."""
        note = WeakMethod(self._note)
        self._lessons = Lessons(self.module, self.card, lambda text: _told(note, text))
        name = type(self.module).__name__
        self.teller = Teller(name, self.card, self.terms.recorder or Recorder(limit=_KEPT))
        self._steps = ToldSteps(self.teller)

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
    def recorder(self) -> Recorder:
        """Who is told what happens; put a fine one there to be told every move and step.

        Steps are told where it is there before the weights are placed: `rest` first.
        """
        return self.teller.recorder

    @recorder.setter
    def recorder(self, recorder: Recorder) -> None:
        self.teller.recorder = recorder

    @property
    def changes(self) -> list[Change]:
        """Each time that weights were placed anew."""
        return self._kept.changes

    @property
    def taken(self) -> int:
        """Bytes of the card that its weights take, by the count of its allocator; 0 at rest.

        As it was when they were last moved, so that any thread may ask at any time.
        """
        return 0 if self._keeping is None else self._keeping.taken

    @property
    def rests(self) -> bool:
        """Whether its weights left the card, or never came, and its next call brings them."""
        return self._keeping is not None and self._keeping.rests

    @property
    def _kept(self) -> Keeping:
        if self._keeping is None:
            raise UsageError(f"`{type(self.module).__name__}` is not fitted.")
        return self._keeping

    def explain(self) -> str:
        """The plan in a screenful, then each time that weights were moved, and what was found."""
        plan = self._kept.plan
        at_rest = f"`{type(self.module).__name__}` is at rest: its weights are on the host."
        lines = [at_rest if plan is None and self._kept.rests else self.plan.explain()]
        for change in self.changes:
            before, after = map(format_bytes, change.resident_bytes)
            when = "at the start" if change.call is None else f"before call {change.call}"
            lines.append(f"{when}: {before} -> {after} resident, since {change.why}.")
        return "\n".join([*lines, *self.notes])

    def open(self, example: Call | None = None, *, at_rest: bool = False) -> None:
        """Place the weights, for a call like `example` where there is one; `at_rest`, none yet."""
        _refuse_inference_tensors(self.module)
        forget_graphs(self.module)
        need, order = self._lessons.of(example)
        weighed = Weighed.of(self.module, order)
        self._paths = _paths_of(self.module)
        arriving = 0 if example is None else example.arriving()
        self._keeping = keeping = Keeping(
            self.module, self.card, self.terms, weighed, teller=self.teller
        )
        try:
            keeping.rests = at_rest
            if not at_rest:
                with self.teller.moves():
                    self._held(
                        lambda: keeping.replan(need, arriving, why="it was fitted"),
                        lambda less, mode: keeping.lower(need, arriving, less, mode),
                        Stage("load", f"Not enough memory to place {weighed.name}."),
                    )
            self._opened = True
            self._open_ways()
            self._show_own()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """The module is as it was, on the host; harmless when repeated."""
        with self._lock:
            if self._inside:
                raise UsageError(f"`{type(self.module).__name__}` is being called: unfit it after.")
            self._to_host()

    def rebudget(self, budget: Budget, *, spare: int = 0) -> None:
        """From the next call on, so much may be used of the card; weights move then.

        All but `spare` bytes of it are planned for: other threads may take those meanwhile. Not to
        be called during a call.
        """
        with self._lock:
            self.terms = _with_budget(self.terms, budget.budget, budget.reserve)
            if self._keeping is not None:
                planned = max(1, budget.budget - spare)
                self._keeping.terms = _with_budget(self._keeping.terms, planned, budget.reserve)

    def rest(self) -> int:
        """Its weights leave the card until the next call; how many bytes came free.

        That call places them anew, by the room that there is then, with copies alone: what is held
        in place on the host stays so. For the bits of results it makes no difference. 0 where
        nothing was on the card.

        Raises `UsageError` while it is called or altered, by whichever thread: it never waits for
        that, so two modules whose calls let each other rest cannot wait for one another. Also where
        a weight was written to while it was on the card, as the next call would. Then nothing has
        been moved.
        """
        name = type(self.module).__name__
        if not self._lock.acquire(blocking=False):
            raise UsageError(f"`{name}` is in use by another thread: let it rest after.")
        try:
            if self._inside:
                raise UsageError(f"`{name}` is being called: let it rest after.")
            if self._keeping is None:
                return 0
            self._keeping.call = self.calls or None
            self._pressure.moved()
            self._steps.tell(self._keeping.session)
            freed = self._keeping.rest()
            self._watch_parts()
            return freed
        finally:
            self._lock.release()

    def tell(self) -> None:
        """Tell the recorder of all calls that are over; the host waits for the card."""
        with self._lock:
            if self._keeping is not None and not self._inside:
                self._steps.tell(self._keeping.session)

    def altered_by(self, method: str, run: Callable[[], Any]) -> Any:
        """What `run` gives, which reads and changes weights from outside: all are on the host then.

        As for a method of the module that does so. Raises `UsageError`, calling it `method`, in the
        middle of a call, and where weights lie by a plan of the user's.
        """
        return self._alter(method, run, (), {})

    def _open_ways(self) -> None:
        """From here on, calls and what changes weights come here first."""
        self._entries = Entries(self.module, self.card.device, self._enter, self._note)
        self._alterations = Alterations(self.module, self._alter, self._write)
        self._watch_parts()

    def _watch_parts(self) -> None:
        """Where it is at rest, calls of its parts come here as well: they wake it."""
        if self.rests and not self._inside and self._part_doors is None:
            self._part_doors = PartDoors(self.module, self._enter)

    def _leave_parts(self) -> None:
        if self._part_doors is not None:
            self._part_doors.close()
            self._part_doors = None

    def _to_host(self) -> None:
        """Everything that is the module's is on the host, also what it has got since."""
        self._leave_parts()
        if self._keeping is not None:
            self._steps.tell(self._keeping.session)
        if self._entries is not None:
            self._entries.close()
        if self._alterations is not None:
            self._alterations.close()
        self._entries = self._alterations = None  # they know this: a cycle would keep weights
        if self._keeping is not None:
            self._keeping.close()
        if self._opened:
            bring_home(self.module, self.card.device)

    def _alter(
        self,
        method: str,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A method that changes which weights there are, or what they are.

        The weights are placed again at once, for a call like the last one, also after an error;
        those that were at rest, or that the caller will write to, by the next call.
        """
        with self.turn(), self._lock:
            self._refuse_altering(method)
            if method == "load_lora_adapter":
                check_loading(self.module, args, kwargs)
            try:
                value = self._write(method, run, args, kwargs)
            except Exception:
                self._place_again(f"`{method}` failed")
                raise
            self._kept.rests |= method in WRITTEN_AFTER
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
        with self.turn(), self._lock:
            self._refuse_altering(method)
            self._altered = True
            self._to_host()
            try:
                return written(self.module, method, lambda: run(*args, **kwargs))
            finally:
                self._open_ways()

    def _refuse_altering(self, method: str) -> None:
        """Where `method` would not find the weights whole."""
        name = type(self.module).__name__
        if self._inside:
            raise UsageError(f"`{name}` is being called: `{method}` has to wait until after.")
        if self.terms.fixed is not None:
            raise UsageError(
                f"`{method}` would change the weights of `{name}`, which lie as a plan of their "
                "own says: do that before, and plan again."
            )
        self._refuse_unsound()

    def _place_again(self, why: str) -> None:
        """Where there is no room, the next call will say so."""
        if not self._altered or self._kept.rests:
            return
        arriving = 0 if self._lessons.like is None else self._lessons.like[1]
        need = self._renew(None)
        keeping = self._kept
        try:
            self._held(
                lambda: keeping.replan(need, arriving, why=why),
                lambda less, mode: keeping.lower(need, arriving, less, mode),
                Stage("load", f"Not enough memory to place {keeping.weighed.name}."),
            )
        except MemoryShortage as error:
            self._note(f"{why}, and there was no room for the weights then: {error.what}")
        self._show_own()

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
            self._refuse_unsound()
        finally:
            self._altered = True
        self._renew(call)

    def _refuse_unsound(self) -> None:
        """What came to the module, or was done to it, while weights were away, and past us."""
        session = self._kept.session
        if session is not None and session.differs:
            refuse_made_of_nothing(session.newcomers())
            Tuners(self.module).refuse_fused_unseen(self._lessons.tuners)

    def _renew(self, call: Call | None) -> Need:
        """The module as it is now is weighed, with all of it on the host; what `call` needs of it.

        None is one like the last.
        """
        self._to_host()
        try:
            _refuse_inference_tensors(self.module)
            self._lessons.forget()
            self._ordered.clear()
            self._looked.clear()
            self._halved.clear()
            self._pressure.moved()
            need, order = self._lessons.of(call)
            self._kept.weighed = Weighed.of(self.module, order)
            self._paths = _paths_of(self.module)
            self._altered = False
        finally:
            self._open_ways()
        return need

    def _enter(
        self,
        method: str,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call from outside, or, from within one, what it would have been."""
        with self.turn(), self._lock:
            if self._inside:
                return run(*args, **kwargs)
            self._inside = True
            self._leave_parts()
            try:
                call = Call(method, args, kwargs)
                self._notice(call)
                start = self.teller.recorder.now()
                with self.teller.moves():
                    value = self._call(call, run)
                self._lessons.remember(call)
                self._steps.ended(start, self._kept.session)
                return value
            except BaseException:
                if self._keeping is not None and self._keeping.session is not None:
                    self._keeping.session.end_calls()
                raise
            finally:
                self._inside = False
                self.calls += 1
                self._show_own()
                self._watch_parts()

    def _call(self, call: Call, run: Callable[..., Any]) -> Any:
        """Whole; where there is no room for it even so, a batch in two halves."""
        key, drawn_again = self._lessons.key(call), drawn(call.given)
        halves = None if key is None else self._known_halves(key, call)
        if halves is None:
            try:
                return self._whole(call, run, drawn_again)
            except MemoryShortage as shortage:
                halves = self._halves_of(call)
                if halves is None:
                    raise
                empty_frames(shortage)
            drawn_again()
        room = self._kept.supply_now().room
        parts = [self._call(part, run) for part in halves.parts()]
        value = self._joined(halves, parts)
        if not self.halved:
            self._note(_HALVES)
        self.halved += 1
        key = self._told(call)
        self._halved[key] = max(room, self._halved.get(key, 0))
        return value

    def _joined(self, halves: Halves, parts: list[Any]) -> Any:
        """What both gave; where there is no room for that beside the weights, these go first."""
        values, failure = once(lambda: halves.join(parts), self.card, self._kept.keepsakes)
        if not values and self._kept.rest():
            values, failure = once(lambda: halves.join(parts), self.card, self._kept.keepsakes)
        if values:
            return values[0]
        raise MemoryShortage(
            f"Not enough memory to join what two halves of a batch gave in "
            f"{type(self.module).__name__}.",
            figures=f"{failure}.",
        )

    def _halves_of(self, call: Call) -> Halves | None:
        """Where two halves are the whole, but for rounding, and there would be room for parts."""
        session = self._kept.session
        if self.terms.fixed is not None:
            return None
        with nullcontext() if session is None else session.asleep():
            found = Halves.of(self.module, call)
            if found is None:
                return None
            least = need_of(self.module, found.smallest, self.card)
        fits = self._kept.has_room(least, found.smallest.arriving(), beside=found.gives)
        return found if fits else None

    def _known_halves(self, key: Hashable, call: Call) -> Halves | None:
        """Where such a call did not fit as a whole, and there is no more room now."""
        room = self._halved.get(key)
        if room is None or self._kept.supply_now().room > room:
            return None
        return Halves.like(call)

    def _whole(self, call: Call, run: Callable[..., Any], drawn_again: Callable[[], None]) -> Any:
        keeping = self._kept
        key, arriving = self._told(call), call.arriving()
        lessons = self._lessons
        if self.makes_room is not None:
            self.makes_room(lambda: keeping.lacks(lessons.needs[key], arriving))

        def made() -> Any:
            args, kwargs = call.args, dict(call.kwargs)
            if not call.is_there:
                args, kwargs = tree_map(self._to_card, (args, kwargs))
            with lessons.tuners.same_strengths(), self._nothing_missed(key):
                return self._run(call.method, run, args, kwargs)

        def first() -> Any:
            keeping.call = self.calls
            now, moved = self.card.read(), len(keeping.changes)
            lessons.lacked(self._pressure.found(now))
            need = lessons.needs[key]
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

        name = type(self.module).__name__
        stage = Stage("forward", f"Not enough memory to run {name}.")
        while True:
            try:
                return self._held(first, again, stage)
            except MemoryShortage as shortage:
                if self.takes_room is None or not self.takes_room():
                    raise
                empty_frames(shortage)
            drawn_again()

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
        values, failure = once(lambda: self._within(first), self.card, self._kept.keepsakes)
        if values:
            return values[0]
        self._note(f"{stage.name} {self.calls} ran out of memory and was done again: {failure}")
        self.teller.recorder.tell(Oom(stage.name, "as placed", failure or ""))
        room = self._kept.supply_now().room

        def rungs() -> Iterator[Rung[Any]]:
            for part in PARTS:
                less = max(room // part, min(MIB, room // PARTS[1]))
                left_out = partial(again, less, self.terms.mode)
                yield Rung(f"{format_bytes(less)} left out", partial(self._within, left_out))
            yield Rung("everything streamed", partial(self._within, partial(again, 0, "none")))

        ladder = Ladder(
            self.card,
            self.terms.supply.budget,
            self.terms.supply.reserve,
            module=self.module,
            module_name=type(self.module).__name__,
            ask=False,
            recorder=self.teller.recorder,
            attempts=self.attempts,
            notes=self.notes,
        )
        return ladder.climb(stage, rungs())

    def _within(self, call: Callable[[], Any]) -> Any:
        """What `call` gives, while the allocator is bounded by a budget below the card.

        Not under cudaMallocAsync, which would have to have a pool made anew for each call.
        """
        supply = self.terms.supply
        if supply.budget >= supply.total or self.card.allocator == "async":
            return call()
        with self.card.cap(supply.budget):
            return call()

    def _run(
        self, method: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        session = self._kept.session
        if session is None or method == "forward":
            return run(*args, **kwargs)
        session.hide_own()
        return session.whole(run, args, kwargs)

    def _show_own(self) -> None:
        """Pipelines read such weights between calls."""
        if self._keeping is not None and self._keeping.session is not None:
            self._keeping.session.show_own()

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

        So is the order in which it uses the weights: where there is none, or where others may be
        used than before, since adapters were switched on, or another method is called.
        """
        key = self._lessons.key(call)
        if key is not None:
            return key
        keeping = self._kept
        known = keeping.weighed.order
        with nullcontext() if keeping.session is None else keeping.session.asleep():
            ask = known is None or bool(self._lessons.tuners.layers)
            ask |= call.method not in self._ordered
            key, order = self._lessons.learn(call, order=ask)
        self._ordered.add(call.method)
        if order is not None and known is not None:
            more = set(order.foreign) - set(known.foreign)
            order = replace(order, foreign=(*known.foreign, *more)) if more else None
        if order is not None:
            keeping.close()
            keeping.weighed = Weighed.of(self.module, order)
        return key

    def _taken(self, before: Reading, arriving: int) -> int | None:
        """By the call that is over, beside `arriving` bytes of inputs that were brought for it."""
        peak = self.card.read().peak_allocated
        if peak is None or before.allocated is None:
            return None
        return peak - before.allocated - self._kept.unpacking - arriving

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _with_budget(terms: Terms, budget: int, reserve: int) -> Terms:
    return replace(terms, supply=replace(terms.supply, budget=budget, reserve=reserve))


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


def _told(note: WeakMethod[Any], text: str) -> None:
    """Note `text`, where there is still somebody who does."""
    tell = note()
    if tell is not None:
        tell(text)
