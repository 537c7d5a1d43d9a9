"""Who touches which bytes of a virtual card, and whether anything puts them in order.

Two that touch the same bytes, one of them writing, and neither in the other's past, are a hazard,
whatever happened to come first this time.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tightfit.card.virtual.clocks import Clock, Line, join
from tightfit.card.virtual.faults import Faults
from tightfit.card.virtual.host_side import HostSide
from tightfit.card.virtual.keeper import Charge, charges
from tightfit.card.virtual.pending import Back, Copy, poison, poison_bytes
from tightfit.card.virtual.uses import Span, Uses, overlap, place_of, span_of
from tightfit.errors import JobFailed
from tightfit.units import format_bytes

if TYPE_CHECKING:
    from tightfit.card.virtual.tensor import VirtualTensor

MOST_HAZARDS = 1000
_MANY_RESULTS = 1000
_PROGRESS = 0.3
_world = threading.RLock()
_everything: weakref.WeakSet[Traffic] = weakref.WeakSet()


@dataclass(slots=True)
class Step:
    """One operator, from its start to its end.

    Attributes:
        tick: its number in the compute queue.
        computed: whether it works with values that are on the card.
        spoilt: whether it used bytes that a lane may still have been copying.
    """

    tick: int
    computed: bool
    spoilt: bool = False


class Traffic:
    """The lanes and the compute queue of one virtual card.

    Attributes:
        compute: the compute queue.
    """

    def __init__(self, faults: Faults) -> None:
        self.compute = Line()
        self._faults = faults
        self._lines: weakref.WeakSet[Line] = weakref.WeakSet((self.compute,))
        self._last: Clock = {self.compute.number: 0}  # of each queue of this card
        self._known: Clock = {}  # of those: what the host has waited for
        self._pending: list[Copy | Back] = []
        self._host = HostSide()
        self._results: list[weakref.ref[Charge]] = []
        self._freed: deque[tuple[Uses, torch.UntypedStorage]] = deque()
        self._purge_at = _MANY_RESULTS
        self._spoilt = range(0)
        self._hazards: list[str] = []
        self._raised = 0
        self._luck: tuple[int | None, random.Random] = (None, random.Random())
        with _world:
            _everything.add(self)

    @property
    def on(self) -> bool:
        """Whether anybody looks (see `Faults.lanes`), or a copy has yet to arrive."""
        return self._faults.lanes is not False or bool(self._pending) or self._host.busy

    @property
    def hazards(self) -> tuple[str, ...]:
        """A sentence for each, in order; at most `MOST_HAZARDS` are kept."""
        with _world:
            self._look_at_freed()
            return tuple(self._hazards)

    def open(self) -> Line:
        """A new lane. What the host knows to be done is in its past."""
        with _world:
            line = Line()
            line.clock |= self._known
            self._last[line.number] = 0
            self._lines.add(line)
            return line

    # What compute does

    def allocated(self, charge: Charge) -> None:
        """Memory was taken; whoever held it before may still be at work in the compute queue."""
        with self._entry():
            charge.uses = uses = Uses()
            uses.writes[0, charge.size] = (self.compute.tick(), "whatever held this memory before")

    def begins(
        self, name: str, reads: Iterable[VirtualTensor], writes: Iterable[VirtualTensor]
    ) -> Step:
        """An operator starts. Raises `JobFailed` for a hazard in strict mode."""
        with self._entry():
            step = Step(self.compute.tick(), computed=False)
            for shell in reads:
                step.computed = True
                uses, span = self._touch(shell, step, name)
                uses.reads[span] = (step.tick, name)
            for shell in writes:
                uses, span = self._touch(shell, step, name)
                uses.writes[span] = (step.tick, name)
                for back in _late(uses, span, self.compute.clock):
                    self._report(
                        f"{name} writes to {format_bytes(shell.nbytes)} that a lane may still be "
                        "copying back: compute did not wait for a mark of the lane after the copy"
                    )
                    back.spoil()
            return step

    def ends(
        self,
        step: Step,
        name: str,
        results: Iterable[VirtualTensor],
        answers: Iterable[torch.Tensor],
    ) -> None:
        """It has these results on the card, new or written into, and these on the host."""
        with self._entry():
            spoilt = step.spoilt or step.tick in self._spoilt
            for answer in answers if spoilt else ():
                poison(answer)
            for tensor in results:
                charge = tensor.charge
                if charge.uses is None:
                    charge.uses = Uses()
                    charge.uses.writes[0, charge.size] = (step.tick, name)
                if step.computed and tensor.is_floating_point():
                    charge.uses.computed = step.tick
                    self._results.append(weakref.ref(charge))
                if spoilt and not charge.uses.copied(span_of(tensor.payload)):
                    poison(tensor.payload)
            if len(self._results) > self._purge_at:
                self._results = [each for each in self._results if each() is not None]
                self._purge_at = 2 * len(self._results) + _MANY_RESULTS

    def freed(self, charge: Charge) -> None:
        """The last tensor of a storage is gone; a collector may say so, thus no lock is taken."""
        if charge.uses is not None and (charge.uses.copies or charge.uses.backs):
            self._freed.append((charge.uses, charge.storage))

    # What lanes do

    def copies(self, line: Line, target: VirtualTensor, source: torch.Tensor) -> None:
        """A copy is queued: until it arrives, its target is poisoned."""
        with self._entry():
            tick = line.tick()
            self._last[line.number] = tick
            uses, span = _uses(target), span_of(target.payload)
            size = format_bytes(target.nbytes)
            past = line.clock.get(self.compute.number, 0)
            late = [
                use
                for table in (uses.reads, uses.writes)
                for other, use in table.items()
                if use[0] > past and overlap(other, span)
            ]
            if late:
                self._report(
                    f"a lane copies {size} over bytes that {max(late)[1]} may still use: the lane "
                    "did not wait for a mark of compute after it"
                )
                self._spoil(min(late)[0])
            for (other, number), when in uses.copies.items():
                if when > line.clock.get(number, 0) and overlap(other, span):
                    self._report(
                        f"two lanes copy {size} to the same bytes, and neither waited for the other"
                    )
            for back in _late(uses, span, line.clock):
                self._report(
                    f"a lane copies {size} over bytes that another may still be copying back, and "
                    "neither waited for the other"
                )
                back.spoil()
            if uses.backs:
                self._land(line.clock)  # what is copied back first has to be there until then
            lost = self._unseen(line, place_of(source), f"copies {size} from")
            uses.forget(span)
            uses.copies[span, line.number] = tick
            copy = Copy(line, uses, target=target.payload, source=source)
            if lost:
                copy.spoil()
            self._pending.append(copy)
            self._host.sends(copy)
            poison(target.payload)

    def copies_back(self, line: Line, target: torch.Tensor, source: VirtualTensor) -> None:
        """A copy back is queued: until the host waits for it, its target is poisoned."""
        with self._entry():
            self._last[line.number] = line.tick()
            uses, span = _uses(source), span_of(source.payload)
            size, place = format_bytes(target.nbytes), place_of(target)
            past = line.clock.get(self.compute.number, 0)
            late = [
                use for other, use in uses.writes.items() if use[0] > past and overlap(other, span)
            ]
            lost = bool(late)
            if late:
                self._report(
                    f"a lane copies {size} back that {max(late)[1]} may still be writing: the lane "
                    "did not wait for a mark of compute after it"
                )
            for (other, number), when in uses.copies.items():
                if when > line.clock.get(number, 0) and overlap(other, span):
                    lost = True
                    self._report(
                        f"a lane copies {size} back that another may still be copying to the card: "
                        "it did not wait for a mark of it after the copy"
                    )
            senders = list(self._host.senders(place))
            for copy in senders:
                if copy.tick > line.clock.get(copy.lane, 0):
                    lost = True
                    copy.spoil()
                    self._report(
                        f"a lane copies {size} back to host memory that another may still be "
                        "copying from: it did not wait for a mark of it after the copy"
                    )
            for back in self._unseen(line, place, f"copies {size} back to"):
                lost = True
                back.spoil()
            if senders:
                self._land(line.clock)  # what is copied from there first needs it until then
            back = Back(line, uses, target=target, source=source.payload)
            if lost:
                back.spoil()
            self._pending.append(back)
            self._host.comes(back)
            uses.backs[span, line.number] = back

    def _unseen(self, line: Line, place: Span, what: str) -> list[Back]:
        """Copies back to bytes of `place` that `line` did not wait for; the others are there."""
        comers = list(self._host.comers(place))
        late = [each for each in comers if each.tick > line.clock.get(each.lane, 0)]
        for _ in late:
            self._report(
                f"a lane {what} host memory that another may still be copying back to: it did not "
                "wait for a mark of it after the copy"
            )
        if len(late) < len(comers):
            self._land(line.clock)
            self._show(line.clock, comers)
        return late

    def mark(self, line: Line) -> Clock:
        """What is done once all that `line` was given so far is done."""
        if not self.on:
            return {}
        with self._entry():
            return dict(line.clock)

    def wait(self, line: Line, clock: Clock) -> None:
        """What `line` is given from now on starts after `clock`."""
        if not clock:
            return
        with self._entry():
            join(line.clock, clock)
            if line is self.compute:
                self._land(line.clock)

    def host_waits(self, clock: Clock) -> None:
        """The host has seen that `clock` is done: all that is queued from now on comes after."""
        if not clock:
            return
        with self._entry():
            for traffic in tuple(_everything):
                traffic._look_at_freed()
                seen = {each: done for each, done in clock.items() if each in traffic._last}
                for other in (traffic._known, *(line.clock for line in tuple(traffic._lines))):
                    join(other, seen)
                traffic._land(seen)
                traffic._show(seen, traffic._host.backs)
                traffic._host.forget(traffic._known)

    def host_waits_for_compute(self) -> None:
        """The host has waited for the compute queue."""
        if self.on:
            self.host_waits(self.compute.clock.copy())

    def host_waits_for_all(self) -> None:
        """The host has waited for everything that this card was given."""
        if not self.on:
            return
        with _world:
            self.host_waits(self._last | self.compute.clock)

    # Hazards

    @contextmanager
    def _entry(self) -> Iterator[None]:
        """One at a time, after what happened in between; in strict mode hazards are raised."""
        with _world:
            self._look_at_freed()
            self._progress()
            yield
            if self._faults.lanes == "strict" and len(self._hazards) > self._raised:
                first, self._raised = self._hazards[self._raised], len(self._hazards)
                raise JobFailed(f"A wait is missing on a virtual card: {first}.")

    def _touch(self, shell: VirtualTensor, step: Step, name: str) -> tuple[Uses, tuple[int, int]]:
        uses, span = _uses(shell), span_of(shell.payload)
        for (other, number), when in uses.copies.items():
            if when > self.compute.clock.get(number, 0) and overlap(other, span):
                step.spoilt = True
                self._report(
                    f"{name} uses {format_bytes(shell.nbytes)} that a lane may still be copying: "
                    "compute did not wait for a mark of the lane after the copy"
                )
                break
        return uses, span

    def _look_at_freed(self) -> None:
        while self._freed:
            uses, storage = self._freed.popleft()
            known = self.compute.clock
            if any(when > known.get(number, 0) for (_, number), when in uses.copies.items()):
                self._report(
                    f"memory of {format_bytes(storage.nbytes())} was freed while a lane may still "
                    "be copying to it: compute did not wait for a mark of the lane after the copy"
                )
            for back in _late(uses, (0, storage.nbytes()), known):
                self._report(
                    f"memory of {format_bytes(storage.nbytes())} was freed while a lane may still "
                    "be copying it back: compute did not wait for a mark of the lane after the copy"
                )
                back.spoil()
            for each in self._pending:
                if each.uses is uses:
                    each.spoil()
            self._pending = [each for each in self._pending if each.uses is not uses]
            heir = charges.get(storage._cdata)
            if heir is None or heir() is None:
                poison_bytes(storage)

    def _spoil(self, since: int) -> None:
        """What compute worked out since then would have been wrong: what is left of it is made so.

        `since` is the last of several uses of one span; what came of an earlier one alone stays,
        and so does what the host has waited for. What came of none of them is made wrong with the
        rest.
        """
        self._spoilt = range(since, self.compute.clock[self.compute.number] + 1)
        for back in self._host.backs:
            if back.computed >= since:
                back.spoil()
        for each in self._results:
            charge = each()
            uses = None if charge is None else charge.uses
            if charge and uses and uses.computed >= since and not uses.copies:
                poison_bytes(charge.storage)

    def _report(self, sentence: str) -> None:
        if len(self._hazards) < MOST_HAZARDS:
            self._hazards.append(sentence)

    # Arrivals

    def _progress(self) -> None:
        """Now and then a copy arrives before anybody waits for it, after all in its past."""
        seed = self._faults.lane_seed
        if seed is None or not self._pending:
            return
        if self._luck[0] != seed:
            self._luck = (seed, random.Random(seed))
        luck = self._luck[1]
        if luck.random() < _PROGRESS:
            self._land(luck.choice(self._pending).past)

    def _land(self, clock: Clock) -> None:
        """Carry out what is in the past of `clock`, in the order in which it was queued."""
        if not self._pending:
            return
        coming, self._pending = self._pending, []
        with torch.inference_mode():
            for each in coming:
                if each.tick > clock.get(each.lane, 0):
                    self._pending.append(each)
                elif (sentence := each.arrive()) is not None:
                    self._report(sentence)

    def _show(self, clock: Clock, backs: Iterable[Back]) -> None:
        """The host sees what is in the past of `clock`, which has been carried out."""
        with torch.inference_mode():
            for back in backs:
                seen = not back.arrived and back.tick <= clock.get(back.lane, 0)
                if seen and (sentence := back.show()) is not None:
                    self._report(sentence)


def _late(uses: Uses, span: Span, clock: Clock) -> list[Back]:
    """Copies back from bytes of `span` that are not in the past of `clock`."""
    return [
        back
        for (other, number), back in uses.backs.items()
        if back.tick > clock.get(number, 0) and overlap(other, span)
    ]


def _uses(shell: VirtualTensor) -> Uses:
    charge = shell.charge
    if charge.uses is None:
        charge.uses = Uses()
    return charge.uses
