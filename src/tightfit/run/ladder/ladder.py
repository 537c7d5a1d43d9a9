"""The only place that catches out-of-memory, and what it does between two tries.

A try that ran out of memory leaves the handler as one line of text. Outside of it, in this order:
tracebacks are cut along the whole chain, what the module kept on itself is dropped, cycles are
collected once, the device is waited for, the allocator is trimmed, and allocated is compared with
what it was. Only then does the next rung start, with the whole room.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torch import nn

from tightfit.card import Card, Reading
from tightfit.errors import MemoryShortage
from tightfit.plan.room import room_left
from tightfit.run.cancel import Cancel
from tightfit.run.ladder.keepsakes import Keepsakes
from tightfit.run.ladder.lessons import Lessons
from tightfit.run.ladder.oom import device_oom_behind
from tightfit.run.ladder.release import cut, empty_frames, in_one_line
from tightfit.run.ladder.rung import PROBE, Attempt, Rung, Stage
from tightfit.units import format_bytes
from tightfit.watch import Recorder
from tightfit.watch.moves import moves_told

T = TypeVar("T")


@dataclass
class Ladder:
    """Climbs down from rung to rung until one holds.

    Attributes:
        card: where the work runs.
        budget: bytes that may be used of it.
        reserve: bytes kept free for others.
        module: what may keep tensors on itself.
        module_name: how it is called in reports.
        reset: makes the module drop what it keeps; may raise, which is noted.
        ask: skip a rung whose predicted need is above the room; else every rung is tried.
        cancel: checked before every rung.
        attempts: every rung that was tried or skipped, in order.
        notes: what was found on the way (dropped caches, clean-up errors, leaks).
    """

    card: Card
    budget: int
    reserve: int = 0
    module: nn.Module | None = None
    module_name: str = "vae"
    reset: Callable[[], None] | None = None
    ask: bool = True
    cancel: Cancel = field(default_factory=Cancel)
    recorder: Recorder = field(default_factory=Recorder)
    lessons: Lessons = field(default_factory=Lessons)
    attempts: list[Attempt] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    peak_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    _assumed_held: int = 0

    def assume_held(self, size: int) -> None:
        """Where the card keeps no books: what we hold, as far as we know."""
        self._assumed_held = size

    def room(self) -> int:
        """Bytes that may still be taken now (DESIGN §2).

        Slack is part of it: what the allocator keeps and nobody uses is what the next tensors are
        given, and a rung that needs no more is not known not to fit.
        """
        reading = self.card.read()
        held = reading.allocated
        return room_left(
            budget=self._ceiling(reading),
            total=reading.total,
            held=self._assumed_held if held is None else held,
            held_by_others=reading.held_by_others or 0,
            context=reading.context or 0,
            reserve=self.reserve,
        )

    def _ceiling(self, reading: Reading) -> int:
        """The budget, or a tighter limit that somebody set on this process."""
        return self.budget if reading.limit is None else min(self.budget, reading.limit)

    def climb(
        self,
        stage: Stage,
        rungs: Iterable[Rung[T]],
        *,
        last: Iterable[Rung[T]] = (),
        quiet: bool = False,
    ) -> T:
        """The value of the first rung that holds.

        Those of `last` come after everything else, also after rungs that were held back for want
        of workspace. With `quiet`, a first try that holds is not recorded. Raises
        `MemoryShortage` when no rung holds; any other error of a rung passes through, after the
        same clean-up.
        """
        tried: set[tuple[Hashable, int]] = set()
        held_back: list[Rung[T]] = []
        changes = 0
        lowest: Rung[T] | None = None
        first = len(self.attempts)
        # Measured once: a later try that begins with more held than this shows it.
        base = self.card.read().allocated
        for rung in self._with_held_back(rungs, held_back, last):
            self.cancel.check()
            if rung not in held_back and not rung.probe:
                lowest = rung
            if rung.prepare is not None:
                before = self.card.read().allocated
                freed = self._prepare(rung.prepare)
                if freed <= 0:
                    self._skip(stage, rung, "nothing to free", base)
                    continue
                changes += 1
                now = self.card.read().allocated
                if base is not None and before is not None and now is not None:
                    base += now - before
            if (rung.identity, changes) in tried:
                self._skip(stage, rung, "the same try again", base)
                continue
            barred = rung.barred()
            if barred is not None:
                self._skip(stage, rung, barred, base)
                continue
            if self.ask:
                need, room = rung.need(), self.room()
                if need is not None and need > room:
                    shortage = f"needs {format_bytes(need)}, {format_bytes(room)} is free"
                    self._skip(stage, rung, shortage, base)
                    continue
            lesson = None if stage.lesson is None else f"{stage.lesson}|{rung.name}|{rung.tile}"
            if lesson is not None and rung not in held_back and self.lessons.refusals(lesson):
                held_back.append(rung)
                self._skip(
                    stage,
                    rung,
                    f"ran short of workspace last time ({self.lessons.refusals(lesson)} refusals)",
                    base,
                )
                continue
            tried.add((rung.identity, changes))
            values, attempt = self._try(
                stage if not rung.probe else replace(stage, name=PROBE), rung, base
            )
            rung.tell(self._taken(attempt), bool(values))
            if values and rung.probe:
                values.clear()
                self.attempts.append(attempt)
                continue
            if values:
                attempt = replace(attempt, error_bound=rung.error_bound())
                if lesson is not None:
                    refusals = attempt.refusals or 0
                    self.lessons.learn(lesson, 0 if refusals <= rung.bears else refusals)
                if not quiet or len(self.attempts) > first:
                    self.attempts.append(attempt)
                return values[0]
            self.attempts.append(attempt)
        raise self.shortage(stage, lowest, self.attempts[first:])

    def _prepare(self, prepare: Callable[[], int]) -> int:
        """Bytes that `prepare` freed; one that fails is noted and freed nothing."""
        outside = sys.exception()
        try:
            freed = prepare()
        except Exception as error:
            self._note(f"freeing memory failed: {cut(error, outside=outside)}")
            return 0
        self.card.trim()
        return freed

    @staticmethod
    def _with_held_back(
        rungs: Iterable[Rung[T]], held_back: list[Rung[T]], last: Iterable[Rung[T]]
    ) -> Iterable[Rung[T]]:
        """All rungs, then those held back for want of workspace, lowest first, then the last."""
        yield from rungs
        yield from reversed(list(held_back))
        yield from last

    def _try(self, stage: Stage, rung: Rung[T], base: int | None) -> tuple[list[T], Attempt]:
        """One try; a list of one value, or an empty one and the card back at its baseline."""
        with self._told(stage):
            return self._tried(stage, rung, base)

    def _tried(self, stage: Stage, rung: Rung[T], base: int | None) -> tuple[list[T], Attempt]:
        self.card.reset_peaks()
        before = self.card.read()
        self.recorder.on(self.card)
        self.recorder.event(
            "attempt", stage=stage.name, rung=rung.name, held_bytes=before.allocated
        )
        keepsakes = None
        if self.module is not None:
            keepsakes = Keepsakes(self.module, device=self.card.device, name=self.module_name)
        values: list[T] = []
        failure: str | None = None
        outside = sys.exception()
        try:
            with self._on_the_card(before):
                values.append(rung.run())
                self.card.sync()
        except BaseException as error:
            values.clear()
            failure = self._out_of_memory(error, outside)
            if failure is None:
                empty_frames(error, outside=outside)
                self.drop(keepsakes)
                with suppress(RuntimeError):  # a broken device must not hide what broke it
                    self._note_peaks()
                raise
            cut(error, outside=outside)
        self._note_peaks()
        after = self.card.read()
        attempt = Attempt(
            stage=stage.name,
            rung=rung.name,
            outcome="ok",
            tile=rung.tile,
            exact=rung.exact,
            peak_bytes=after.peak_allocated,
            peak_reserved_bytes=after.peak_reserved,
            held_before_bytes=before.allocated,
            baseline_bytes=base,
            refusals=after.refused_since(before),
        )
        if failure is None:
            self.drop(keepsakes)
            self.recorder.event("done", stage=stage.name, rung=rung.name)
            if (attempt.refusals or 0) > rung.bears:
                self._note(
                    f"{attempt.refusals} workspaces were refused without an error in rung "
                    f"`{rung.name}`: it may have been many times slower, and other kernels may "
                    "have run; the next such job starts one rung lower"
                )
            return values, attempt
        self.recorder.event("oom", stage=stage.name, rung=rung.name, text=failure)
        dropped = self._recover(keepsakes, base, before.allocated)
        kept = f"; dropped {', '.join(dropped)}" if dropped else ""
        return [], replace(attempt, outcome="oom", reason=failure.rstrip(".") + kept)

    def _taken(self, attempt: Attempt) -> int | None:
        """What a try took, beside what it found and what it left; None where it fell short of it.

        A workspace that a library keeps for good is not taken again.
        """
        held, after = attempt.held_before_bytes, self._allocated()
        if attempt.refusals or attempt.peak_bytes is None or held is None or after is None:
            return None
        return attempt.peak_bytes - max(held, after)

    def _told(self, stage: Stage) -> AbstractContextManager[None]:
        """Every move is told, where that is wanted; a probe is for those who learn from them."""
        return nullcontext() if stage.name == PROBE else moves_told(self.card, self.recorder)

    def _on_the_card(self, reading: Reading) -> AbstractContextManager[None]:
        """Where the driver would go on in the host's memory, no more than is free on the card."""
        if not self.card.spills or reading.free is None or reading.reserved is None:
            return nullcontext()
        return self.card.cap(max(0, reading.reserved + reading.free - self.reserve))

    def _out_of_memory(self, error: BaseException, outside: BaseException | None) -> str | None:
        """What the device said when it ran out of memory; None if that is not what happened."""
        oom = device_oom_behind(error, outside=outside)
        if oom is None:
            return None
        if oom is not error:
            self._note(f"clean-up after it failed too: {in_one_line(error)}")
        return in_one_line(oom)

    def _recover(
        self, keepsakes: Keepsakes | None, base: int | None, before: int | None
    ) -> tuple[str, ...]:
        """Everything between two tries; called with no exception alive."""
        dropped = self.drop(keepsakes)
        gc.collect()
        self._settle()
        self.card.trim()
        self.card.check()
        held = self.card.read().allocated
        self.recorder.event("recovered", held_bytes=held, baseline_bytes=base)
        if held is not None and before is not None and held > before:
            self._note(
                f"{format_bytes(held - before)} of the failed try are still held by something "
                "outside the module; the next rung is planned from what is really free"
            )
        return dropped

    def _settle(self) -> None:
        """Wait for the device; an out-of-memory that arrives late belongs to the failed try."""
        outside = sys.exception()
        for _ in range(8):
            late = ""
            try:
                self.card.sync()
            except BaseException as error:
                late = self._out_of_memory(error, outside) or ""
                if not late:
                    raise
                cut(error, outside=outside)
            if not late:
                return
            self._note(f"arrived late, at a synchronisation: {late}")

    def drop(self, keepsakes: Keepsakes | None = None) -> tuple[str, ...]:
        """Let the module drop what it keeps: its own way first, then by name; what went."""
        outside = sys.exception()  # maybe the failure that this comes after, on its way
        before = self._allocated()
        if self.reset is not None:
            try:
                self.reset()
            except Exception as error:
                empty_frames(error, outside=outside)
                self._note(f"the module's own clean-up failed: {in_one_line(error)}")
        own = self._allocated()
        dropped = keepsakes.drop() if keepsakes is not None else ()
        if before is not None and own is not None and own < before:
            return (f"{self.module_name}'s own cache ({format_bytes(before - own)})", *dropped)
        return dropped

    def _allocated(self) -> int | None:
        """Bytes in live tensors; None where unknown, or where the device is broken."""
        try:
            return self.card.read().allocated
        except RuntimeError:
            return None

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _note_peaks(self) -> None:
        reading = self.card.read()
        self.peak_bytes = _larger(self.peak_bytes, reading.peak_allocated)
        self.peak_reserved_bytes = _larger(self.peak_reserved_bytes, reading.peak_reserved)
        self.recorder.peaks(reading.peak_allocated, reading.peak_reserved)

    def _skip(self, stage: Stage, rung: Rung[T], reason: str, base: int | None) -> None:
        held = self.card.read().allocated
        self.recorder.event("skipped", stage=stage.name, rung=rung.name, reason=reason)
        self.attempts.append(
            Attempt(
                stage=stage.name,
                rung=rung.name,
                outcome="skipped",
                reason=reason,
                tile=rung.tile,
                held_before_bytes=held,
                baseline_bytes=base,
            )
        )

    def shortage(
        self, stage: Stage, lowest: Rung[T] | None, attempts: list[Attempt]
    ) -> MemoryShortage:
        """The error that says what `stage` needs (by its `lowest` rung) and what there is."""
        reading = self.card.read()
        held = reading.allocated if reading.allocated is not None else self._assumed_held
        usable = self.room() + held
        need = lowest.need() if lowest is not None else None
        if need is not None and held + need > usable:
            needs = f"Needs {format_bytes(held + need)} at least"
        else:
            needs = f"Needs more than {format_bytes(usable)}"
        error = MemoryShortage(
            stage.sentence,
            figures=f"{needs}; {self._whose(reading, usable)}.",
            tried=[
                f"{a.rung} ({'out of memory' if a.outcome == 'oom' else a.reason})"
                for a in attempts
                if a.outcome != "ok"  # a probe
            ],
            advice=stage.advice,
        )
        error.attempts = tuple(self.attempts)
        error.recorder = self.recorder.whole
        for note in self.notes:
            error.add_note(note)
        return error

    def _whose(self, reading: Reading, usable: int) -> str:
        """Who has the memory of the card, in words."""
        parts = [f"{format_bytes(reading.total)} in all"]
        if self.budget < reading.total:
            parts.append(f"budget {format_bytes(self.budget)}")
        if self._ceiling(reading) < self.budget:
            parts.append(f"this process is limited to {format_bytes(self._ceiling(reading))}")
        if self.reserve:
            parts.append(f"{format_bytes(self.reserve)} kept free")
        if reading.held_by_others:
            parts.append(f"{format_bytes(reading.held_by_others)} held by other programs")
        if reading.context:
            parts.append(f"{format_bytes(reading.context)} for the device context")
        return f"{format_bytes(usable)} can be used on {self.card.name} ({', '.join(parts)})"


def _larger(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)
