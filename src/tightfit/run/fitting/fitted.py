"""A module that fits on its card, call after call, whatever else happens there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakMethod

from torch import nn

from tightfit.card import Card
from tightfit.errors import MemoryShortage, UsageError
from tightfit.place.streaming.home import bring_home
from tightfit.place.streaming.streamed import Streaming
from tightfit.place.streaming.tables import forget_graphs
from tightfit.plan.budget import Budget
from tightfit.plan.plan import Plan
from tightfit.run.fitting.alterations import WRITTEN_AFTER
from tightfit.run.fitting.calls import Calls, MakesRoom, Neighbours, TakesRoom
from tightfit.run.fitting.contents import Contents
from tightfit.run.fitting.handing import handed, other_card, to_host
from tightfit.run.fitting.keeping import Keeping
from tightfit.run.fitting.lessons import Lessons
from tightfit.run.fitting.lora import check_loading
from tightfit.run.fitting.need import Call, Need
from tightfit.run.fitting.placement import Change
from tightfit.run.fitting.terms import Terms
from tightfit.run.fitting.told_steps import ToldSteps
from tightfit.run.fitting.tries import Tries
from tightfit.run.fitting.tuners import written
from tightfit.run.fitting.ways_in import WaysIn
from tightfit.run.ladder.rung import Attempt, Stage
from tightfit.units import format_bytes
from tightfit.watch import Recorder
from tightfit.watch.teller import Teller

_KEPT = 4096
"""Events that are kept for whoever asks what happened, where nobody brought a recorder."""


@dataclass(eq=False, repr=False)
class Fitted:
    """One module, its card, and where its weights are.

    Attributes:
        module: the user's, to be called as ever.
        card: where it computes.
        terms: what was asked for.
        attempts: calls that ran out of memory, and what was tried then.
        notes: what was found on the way.
        makes_room: called at the beginning of each call from outside, before its weights are placed
            or stay. What it is given tells, when asked, the bytes of the card that the module would
            like to have beyond what its weights take now: all that may be resident, what the call
            needs, and inputs that are brought. (To tell may take a plan.)
            It may let other modules `rest`. It is called while this one is busy, so it may not wait
            for a thread that calls one; to `rest` never waits.
        takes_room: called where there was no room for a call, even with everything streamed; where
            it freed something (it says how many bytes), the call is made again.
        home_gives: frees something of the card that results are handed back to, where that is full;
            how many bytes.
        teller: tells `teller.recorder` what happens; another recorder may be put there at any time.
        turn: entered around each call from outside, and around what changes its weights. It may
            wait: this module is not busy yet.
    """

    module: nn.Module
    card: Card
    terms: Terms
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    makes_room: MakesRoom | None = None
    takes_room: TakesRoom | None = None
    home_gives: TakesRoom | None = None
    turn: Callable[[], AbstractContextManager[object]] = nullcontext
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _inside: bool = False
    _calls: Calls | None = None
    _ways_in: WaysIn | None = None
    _opened: bool = False

    def __post_init__(self) -> None:
        """Nothing is placed yet."""
        note = WeakMethod(self._note)
        self._lessons = Lessons(self.module, self.card, lambda text: _told(note, text))
        self._contents = Contents(self.module, self._lessons)
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
    def calls(self) -> int:
        """That were made."""
        return 0 if self._calls is None else self._calls.made

    @property
    def halved(self) -> int:
        """How often a batch was parted in two, since there was no room for it."""
        return 0 if self._calls is None else self._calls.halved

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
    def _keeping(self) -> Keeping | None:
        return None if self._calls is None else self._calls.keeping

    @property
    def _calling(self) -> Calls:
        if self._calls is None:
            raise UsageError(f"`{type(self.module).__name__}` is not fitted.")
        return self._calls

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
        forget_graphs(self.module)
        need, weighed = self._contents.weigh(example)
        arriving = 0 if example is None else example.arriving()
        keeping = Keeping(self.module, self.card, self.terms, weighed, teller=self.teller)
        tries = Tries(keeping, self.teller, self.attempts, self.notes)
        self._calls = Calls(keeping, self._lessons, tries)
        try:
            keeping.rests = at_rest
            if not at_rest:
                with self.teller.moves():
                    self._place(need, arriving, "it was fitted")
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
            self.terms = self.terms.with_budget(budget, spare=spare)
            if self._keeping is not None:
                self._keeping.terms = self._keeping.terms.with_budget(budget, spare=spare)

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
            self._calling.moved()
            self._steps.tell(self._keeping.session)
            freed = self._keeping.rest()
            self._watch_parts()
            return freed
        finally:
            self._lock.release()

    @property
    def parked(self) -> int:
        """Bytes of its weights that lie on a second card, to be copied from there."""
        return 0 if self.terms.annexe is None else self.terms.annexe.bytes

    def leave_annexe(self) -> int:
        """What lies on a second card leaves it, if the weights are at rest; bytes."""
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            return 0 if self._keeping is None or self._inside else self._keeping.leave_annexe()
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
        self._ways_in = WaysIn(
            self.module,
            self.card.device,
            self._enter,
            self._alter,
            self._write,
            self._note,
            home=self.terms.home,
        )
        self._watch_parts()

    def _watch_parts(self) -> None:
        """Where it is at rest, calls of its parts come here as well: they wake it.

        Always, where callers believe it to be on another card, and have their inputs there.
        """
        away = self.terms.home not in (None, self.card.device)
        if self._ways_in is not None and (self.rests or away) and not self._inside:
            self._ways_in.open_parts()

    def _to_host(self) -> None:
        """Everything that is the module's is on the host, also what it has got since."""
        if self._keeping is not None:
            self._steps.tell(self._keeping.session)
        if self._ways_in is not None:
            self._ways_in.close()
        self._ways_in = None
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
            self._contents.altered = True
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
        self._contents.refuse_unsound(self._kept.session)

    def _place_again(self, why: str) -> None:
        """Where there is no room, the next call will say so."""
        if not self._contents.altered or self._kept.rests:
            return
        arriving = 0 if self._lessons.like is None else self._lessons.like[1]
        need = self._renew(None)
        try:
            self._place(need, arriving, why)
        except MemoryShortage as error:
            self._note(f"{why}, and there was no room for the weights then: {error.what}")
        self._show_own()

    def _place(self, need: Need, arriving: int, why: str) -> None:
        """Place the weights for a call, with fewer on the card where it is full."""
        keeping = self._kept
        self._calling.tries.held(
            lambda: keeping.replan(need, arriving, why=why),
            lambda less, mode: keeping.lower(need, arriving, less, mode),
            Stage("load", f"Not enough memory to place {keeping.weighed.name}."),
            call=self.calls,
        )

    def _notice(self, call: Call) -> None:
        """Weigh the module anew where it has other weights than when it was weighed."""
        if self.terms.fixed is not None:
            return
        contents, session = self._contents, self._kept.session
        if not contents.differ(session):
            return
        try:
            contents.refuse_unsound(session)
        finally:
            contents.altered = True
        self._renew(call)

    def _renew(self, call: Call | None) -> Need:
        """The module as it is now is weighed, with all of it on the host; what `call` needs of it.

        None is one like the last.
        """
        self._to_host()
        try:
            self._calling.forget()
            need, self._kept.weighed = self._contents.weigh(call)
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
        """A call from outside, or, from within one, what it would have been.

        What it is given on another card is brought, and what it gives is handed back there.
        """
        with self.turn(), self._lock:
            if self._inside:
                return run(*args, **kwargs)
            self._inside = True
            if self._ways_in is not None:
                self._ways_in.close_parts()
            try:
                asker = other_card((args, kwargs), self.card.device)
                if asker is not None:
                    args, kwargs = to_host((args, kwargs), asker)
                call = Call(method, args, kwargs)
                self._notice(call)
                start = self.teller.recorder.now()
                with self.teller.moves():
                    beside = Neighbours(self.makes_room, self.takes_room)
                    value = self._calling.make(call, run, beside)
                self._lessons.remember(call)
                self._steps.ended(start, self._kept.session)
                if asker is None:
                    return value
                return handed(value, self.card.device, asker, makes_room=self.home_gives)
            except BaseException as error:
                if self._keeping is not None and self._keeping.session is not None:
                    self._keeping.session.end_calls()
                if isinstance(error, MemoryShortage):
                    error.recorder = self.teller.recorder.whole
                raise
            finally:
                self._inside = False
                self._calling.made += 1
                self._show_own()
                self._watch_parts()

    def _show_own(self) -> None:
        """Pipelines read such weights between calls."""
        if self._keeping is not None and self._keeping.session is not None:
            self._keeping.session.show_own()

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _told(note: WeakMethod[Any], text: str) -> None:
    """Note `text`, where there is still somebody who does."""
    tell = note()
    if tell is not None:
        tell(text)
