"""A card that several models share: one budget, one shelf, and one call at a time."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from torch import nn

from tightfit.adapters.live.pipeline import answer_for
from tightfit.api.annexes import Overflow
from tightfit.api.fitting import dtype_of, fit_at_rest, refuse_fitted, refuse_unsupported, unfit
from tightfit.api.sharing.taken import Alone, Guest, Taken
from tightfit.api.sharing.timesheet import Timesheet
from tightfit.card import Card
from tightfit.errors import UsageError
from tightfit.place import alone
from tightfit.place.lanes import compute_of
from tightfit.plan.budget import Budget
from tightfit.plan.room import room_left
from tightfit.run.cancel import Cancel
from tightfit.run.shelf import Shelf
from tightfit.run.stopping import Stopping
from tightfit.units import MIB, format_bytes
from tightfit.watch import Recorder
from tightfit.watch.events import Wait
from tightfit.weigh import weight_bytes
from tightfit.weigh.calibration import Calibrations
from tightfit.weigh.conversions import computes_in

_owned: dict[nn.Module, tuple[SharedCard, Taken]] = {}
"""What lies on shared cards."""
_guard = threading.Lock()
_latest = threading.local()
"""For whom this thread made the latest call, on whichever card."""
_NOTES = 6
_EVENTS = 4096
"""That are kept for whoever asks what happened, where nobody brought a recorder."""
_WAITED = 1e-3
"""Seconds from which on a wait is told."""
_LENT = 8
"""Of the budget, one part in so many is left free by what lies here for other cards."""
_RECENT = 64
"""Calls: where several threads made them, others may be at work between theirs."""
_SPARE = (32, 256 * MIB)
"""Of the budget, one part in so many is left to pipelines that are between two networks in another
thread, and at most so many bytes: their latents and noise come and go beside a call."""


class SharedCard:
    """One card, and the models that take turns on it.

    Attributes:
        card: where they run.
        shelf: who makes room for whom.
        stopping: which calls were asked to stop.
        calibrations: what was learnt of VAEs.
        recorder: is told what the models do; see `recording`.
    """

    def __init__(
        self,
        card: Card,
        budget: Budget,
        *,
        one_of_several: bool = False,
        number: int | None = None,
    ) -> None:
        """Nobody is there yet. Several cards have one master for the same weights of a file.

        `number` tells it from others that somebody has opened with it under one name.
        """
        self.card = card
        self._number = number
        self._shares = one_of_several
        self.shelf = Shelf(self._room)
        self.stopping = Stopping()
        self.calibrations = Calibrations()
        self.recorder = Recorder(limit=_EVENTS)
        self._budget = budget
        self._obeyed = budget, 0
        self._callers: deque[int] = deque(maxlen=_RECENT)
        self._models: dict[nn.Module, Taken] = {}
        self._depth = 0
        self._last: Taken | None = None
        self._times = Timesheet(compute_of(card))

    @property
    def named(self) -> str:
        """Its name, and which of several it is where that does not tell."""
        if self._number is None or self.card.kind == "cuda":
            return self.card.name
        return f"{self.card.name} (card {self._number})"

    @property
    def budget(self) -> Budget:
        """What may be used of the card; a new one is obeyed by the next call.

        Where nobody is at work, idle models leave at once as far as they have to.
        """
        return self._budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._budget = budget
        if not self._depth:
            with self.card.alone():
                self._obey(None)

    @property
    def models(self) -> list[Taken]:
        """In the order in which they came."""
        return list(self._models.values())

    @property
    def user(self) -> object | None:
        """For whom this thread made the latest call of a model that is not shared."""
        found = getattr(_latest, "user", None)
        return None if found is None else found()

    def take(
        self,
        module: nn.Module,
        name: str,
        user: object,
        *,
        mode: str = "auto",
        pack: str = "auto",
        compute: str = "auto",
        once: bool = False,
        home: SharedCard | None = None,
        overflow: SharedCard | None = None,
    ) -> Taken:
        """Fit a network, at rest; one that is there already serves this user, too.

        `once` says that a rest follows each call or two of it; `home` is the card that pipelines
        believe it to be on, by default this one; what streams may lie on `overflow`.

        Raises `UsageError` for what is fitted by somebody else, or cannot be.
        """

        dtype = dtype_of(compute)

        def fit(taken: Taken) -> None:
            network = fit_at_rest(
                module,
                card=self.card,
                budget=self._budget,
                mode=mode,
                pack=pack,
                compute=dtype,
                shares=self._shares,
                others=lambda: self._wanted(taken),
                once=once,
                home=None if home is None else home.card.device,
                overflow=None if overflow in (None, self) else overflow._offered(),
            )
            if overflow not in (None, self):
                guests = overflow.shelf.guests
                name = f"{taken.name} of {self.named}"
                guests[name] = Guest(network)
                taken.undo.callback(lambda: guests.pop(name, None))
            taken.undo.callback(lambda: unfit(module))
            taken.network = network
            network.teller.network, network.teller.recorder = taken.name, self.recorder
            budget, spare = self._obeyed
            network.rebudget(budget, spare=spare)
            network.turn = lambda: self.at_work(taken)
            network.makes_room = lambda wanted: self._comes(taken, wanted)
            network.takes_room = lambda: self.free_one(taken)
            network.home_gives = None if home in (None, self) else taken.home_gives
            self.shelf.models[taken.name] = taken
            self.shelf.link = network.terms.supply.link.per_second

        with self.card.alone():
            if module in self._models and computes_in(module) != dtype:
                raise UsageError(
                    f"`{type(module).__name__}` is here already, and computes in another dtype "
                    "than is asked for now: give each a module of its own."
                )
            return self._taken(module, name, user, fit, home)

    def take_vae(
        self,
        module: nn.Module,
        name: str,
        user: object,
        begin: Callable[[Taken], None],
        *,
        home: SharedCard | None = None,
    ) -> Taken:
        """As `take`, for a VAE: `begin` lets its methods code by `at_work`, until it is undone.

        Also for weights in a dtype that the card does not compute in.
        """

        def fit(taken: Taken) -> None:
            refuse_fitted(module)
            refuse_unsupported(module, self.card)
            begin(taken)

        return self._taken(module, name, user, fit, home)

    def give_back(self, taken: Taken, user: object) -> None:
        """`user` is done with it. Raises `UsageError`, and does nothing, in the middle of a call.

        After the last of its users the module is as it was before.
        """
        with self.card.alone():
            if user not in taken.users:
                return
            if len(taken.users) == 1:
                if taken.network is not None:
                    taken.network.close()
                taken.undo.close()
                self._models.pop(taken.module, None)
                self.shelf.models.pop(taken.name, None)
                self._last = None if self._last is taken else self._last
            taken.users.remove(user)

    @contextmanager
    def at_work(self, taken: Taken) -> Iterator[Cancel]:
        """While inside, this thread calls it, and nobody else calls anything on the card."""
        came = time.perf_counter()
        with (
            alone(taken.module) if taken.network is None else nullcontext(),
            self.card.alone(),
        ):
            if self._depth:
                yield Cancel()
                return
            self._tell_wait("another call has the card", time.perf_counter() - came)
            with self.stopping.call() as cancel:
                self._depth += 1
                try:
                    self._obey(taken)
                    self._charge(taken)
                    with self._times.call(taken):
                        yield cancel
                finally:
                    self._depth -= 1

    @contextmanager
    def recording(self, recorder: Recorder) -> Iterator[None]:
        """While inside, `recorder` is told what the models do; calls are told of at the end."""
        before = self.recorder
        self._record(recorder)
        try:
            yield
        finally:
            for each in self.models:
                if each.network is not None:
                    each.network.tell()
            self._record(before)

    def _record(self, recorder: Recorder) -> None:
        self.recorder = recorder
        for each in self.models:
            if each.network is not None:
                each.network.teller.recorder = recorder

    def settle(self) -> None:
        """Wait for the card, so that seconds are those of whoever was at work."""
        with self.card.alone():
            if not self._depth:
                self._wait()

    def free_one(self, taken: Taken) -> int:
        """The next that can go does; bytes that came free."""
        return self.shelf.needs(taken.name, self.shelf.room() + 1)

    def give_one(self) -> int:
        """As `free_one`, for what is handed over from another card; it waits for nobody."""
        freed = self.shelf.gives(None, 1)
        if freed:
            self.card.trim()
        return freed

    def free(self) -> int:
        """Whoever is not at work leaves the card, between two calls; bytes that came free.

        Of tensors, as the card counts them before and after. Waits for the call under way.
        """
        self.stopping.forget()
        with self.card.alone():
            before = self.card.read().allocated
            gone = sum(each.rest() for each in self.models)
            for each in self.models:
                if each.network is not None:
                    each.network.leave_annexe()
            self.card.trim()
            after = self.card.read().allocated
        return gone if before is None or after is None else max(0, before - after)

    def cancel(self, makes_calls: Callable[[object], bool]) -> int:
        """Calls under way stop at their next safe point; in how many threads there were some.

        So does what makes them, where a method of an object that `makes_calls` is running.
        """
        return self.stopping.ask(makes_calls)

    def explain(self) -> str:
        """The ledger of the card, and a line for each model."""
        now, budget = self.card.read(), self._budget
        held = "unknown" if now.allocated is None else format_bytes(now.allocated)
        free = format_bytes(self.shelf.room())
        kept = f", {format_bytes(budget.reserve)} kept free" if budget.reserve else ""
        others = ""
        if now.held_by_others:
            others = f", {format_bytes(now.held_by_others)} held by other programs"
        lines = [
            f"{self.named}: budget {format_bytes(budget.budget)} of "
            f"{format_bytes(now.total)}{kept}; {held} held, {free} free{others}"
        ]
        lines += [f"  {each.explain(each.name)}" for each in self.models]
        lines += [
            f"  {name}: {format_bytes(guest.taken)} lie here, and are copied from here"
            for name, guest in self.shelf.guests.items()
            if guest.taken
        ]
        return "\n".join([*lines, *(f"  {note}" for note in self.shelf.notes[-_NOTES:])])

    def _offered(self) -> Overflow:
        """To networks on other cards; what is done here has a part of the budget for itself."""
        return Overflow(self.card, lambda: self._budget, self._budget.budget // _LENT)

    def _taken(
        self,
        module: nn.Module,
        name: str,
        user: object,
        fit: Callable[[Taken], None],
        home: SharedCard | None,
    ) -> Taken:
        at_home = home or self
        device = at_home.card.device
        with self.card.alone():
            found = self._models.get(module)
            if found is not None:
                if found.home != device:
                    raise UsageError(
                        f"`{found.name}` is here already for a pipeline that works on "
                        f"{found.home}: let this one, which works on {device}, have the same cards."
                    )
                found.users.append(user)
                return found
            taken = Taken(
                self._free_name(name), module, weight_bytes(module), device, at_home.give_one
            )
            with _guard:
                if module in _owned:
                    raise UsageError(
                        f"`{name}` is fitted already, with something else: unfit that first, or "
                        "fit both in one `tightfit.Session`, with this part on one card."
                    )
                _owned[module] = self, taken
            taken.undo.callback(lambda: _owned.pop(module, None))
            try:
                fit(taken)
                taken.undo.callback(answer_for(module, device))
            except BaseException:
                self.shelf.models.pop(taken.name, None)
                taken.undo.close()
                raise
            taken.users.append(user)
            self._models[module] = taken
            return taken

    def _free_name(self, name: str) -> str:
        names = {each.name for each in self.models}
        tries = (name, *(f"{name}-{at}" for at in range(2, len(names) + 3)))
        return next(each for each in tries if each not in names)

    def _comes(self, taken: Taken, wanted: Callable[[], int]) -> None:
        self.shelf.comes(taken.name, wanted)

    def _obey(self, taken: Taken | None) -> None:
        """What is new of the budget holds from here on."""
        budget = self._budget
        if taken is not None:
            self._callers.append(threading.get_ident())
        several = len(set(self._callers)) > 1
        spare = min(budget.budget // _SPARE[0], _SPARE[1]) if several else 0
        if (budget, spare) == self._obeyed:
            return
        self._obeyed = budget, spare
        for each in self.models:
            if each.network is not None:
                each.network.rebudget(budget, spare=spare)
        excess = (self.card.read().allocated or 0) - budget.budget
        if excess > 0:
            self.shelf.gives(None if taken is None else taken.name, excess)
        self.card.trim()

    def _charge(self, taken: Taken) -> None:
        """Before another comes, what is under way on the card is the last one's.

        One that is there already begins without a wait, such as a control network between steps.
        """
        if len(taken.users) == 1:
            _latest.user = weakref.ref(taken.users[0])
        if self._last is not taken:
            if not taken.taken:
                self._wait()
            self._last = taken

    def _wait(self) -> None:
        if self._last is None:
            return
        start = time.perf_counter()
        self.card.sync()
        seconds = time.perf_counter() - start
        self._times.settle()
        self._tell_wait(f"{self._last.name} is done before another comes", seconds)

    def _tell_wait(self, reason: str, seconds: float) -> None:
        if seconds >= _WAITED:
            self.recorder.tell(Wait(reason, round(seconds, 6)))

    def _wanted(self, taken: Taken) -> int:
        """Bytes of host memory that others than it may still want: theirs were never placed."""
        return sum(
            each.size for each in self.models if each is not taken and not each.has_been_placed
        )

    def _room(self) -> int:
        now = self.card.read()
        budget = self._budget.budget
        return room_left(
            budget=budget if now.limit is None else min(budget, now.limit),
            total=now.total,
            held=now.allocated or 0,
            held_by_others=now.held_by_others or 0,
            context=now.context or 0,
            reserve=self._budget.reserve,
        )


def is_alone(module: nn.Module) -> bool:
    """Whether it is fitted for itself on a shared card."""
    with _guard:
        found = _owned.get(module)
    return found is not None and any(isinstance(each, Alone) for each in found[1].users)


def unfit_alone(module: nn.Module) -> bool:
    """Give back a module that was fitted for itself on a shared card; False where it is on none.

    Raises `UsageError` for a part of a pipeline that is fitted.
    """
    with _guard:
        found = _owned.get(module)
    if found is None:
        return False
    shared, taken = found
    user = next((each for each in taken.users if isinstance(each, Alone)), None)
    if user is None:
        raise UsageError(
            f"`{taken.name}` is fitted as a part of a pipeline: unfit the pipeline instead."
        )
    shared.give_back(taken, user)
    return True
