"""Where the weights of a module are, and how that follows the room from call to call."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import nn

from tightfit.card import Card, Reading
from tightfit.errors import MemoryShortage
from tightfit.place.packing.packed import scratch_for
from tightfit.place.packing.rate import measure_unpacking
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.plan.figure import Rate
from tightfit.plan.plan import Plan
from tightfit.plan.streaming.residency import Mode, Residency
from tightfit.plan.supply import Supply
from tightfit.run.fitting.annexes import annexe_now
from tightfit.run.fitting.need import Need
from tightfit.run.fitting.packs import Packs
from tightfit.run.fitting.patience import Patience
from tightfit.run.fitting.placement import Change, Placement
from tightfit.run.fitting.placing import (
    Weighed,
    plan_call,
    supply_of_reading,
    taken_by,
    working_of,
)
from tightfit.run.fitting.terms import Terms as Terms
from tightfit.run.ladder.keepsakes import Keepsakes
from tightfit.run.ladder.release import empty_frames
from tightfit.units import MIB, format_bytes
from tightfit.watch.teller import Teller

_BREATH = (64, 256 * MIB)
"""Of the room, one part in so many is left free, and at most so many bytes: what other programs
and callers take and give back from call to call must not move weights each time."""
_KERNELS = 128 * MIB
"""What CUDA takes of the card, beside every allocator, when kernels are first used: 76 to 172 MiB
were seen. Until the first call is over, so much is left free at least."""
_SLOWLY = 10e9
"""Bytes of weights that a CUDA card is taken to unpack in a second where that was not measured."""
PARTS = (32, 8, 3)
"""Of the room, what is left out at the tries after one that ran out of memory."""


@dataclass(eq=False, repr=False)
class Keeping:
    """The weights of one module on one card.

    Attributes:
        module, card: whose, and where.
        terms: what was asked for.
        weighed: the module in the pieces it moves in.
        changes: each time that weights were placed anew.
        call: the number of the call that is about to be made; None is none yet.
        session: what streams them; None is that they are on the host.
        keepsakes: what the module kept on itself when they were placed.
        taken: bytes of the card that they take, tables in plain attributes included, by the count
            of its allocator; as it was when they were last moved.
        rests: they were let to rest, and not placed since.
        teller: is told where they are, and when that changes.
        unpacking: bytes that a call takes to unpack weights, beside what it needs and what they
            come to.
    """

    module: nn.Module
    card: Card
    terms: Terms
    weighed: Weighed
    changes: list[Change] = field(default_factory=list)
    call: int | None = None
    session: Streaming | None = None
    unpacking: int = 0
    taken: int = 0
    rests: bool = False
    teller: Teller | None = None
    _stack: ExitStack = field(default_factory=ExitStack)
    _placement: Placement | None = None
    _patience: Patience = field(default_factory=Patience)
    _moving: float = 0.0
    _packed: tuple[Weighed, Packs] | None = None
    _placed_for: Need | None = None
    _before: tuple[Placement, Need, Residency] | None = None
    _liking: tuple[int, Any, int] | None = None

    def __post_init__(self) -> None:
        """Nothing is placed yet."""
        self.keepsakes = self._remembered()

    @property
    def plan(self) -> Plan | None:
        """What they are placed by."""
        return None if self._placement is None else self._placement.plan

    def close(self) -> None:
        """They are on the host, until they are placed again; harmless when repeated."""
        self._placement = self.session = self._before = self._liking = None
        self.unpacking = self.taken = 0
        self._stack.close()

    def rest(self) -> int:
        """They leave the card until they are placed again, and masters stay; bytes that came free.

        Raises `UsageError` where a part of the module is being called, and what
        `Streaming.rest` does.
        """
        session, start = self.session, time.perf_counter()
        if session is None:
            self.rests = True
            return 0
        placed = self._placement
        if placed is not None and self._placed_for is not None:
            self._before = placed, self._placed_for, session.residency
        before = session.residency.resident_bytes if placed is not None else 0
        freed = 0
        try:
            freed = session.rest(waits=False)
        finally:
            if session.rests:
                was_placed, self._placement, self.rests = self._placement is not None, None, True
                self._note_taken()
                self._patience.rested()
                self.keepsakes = self._remembered()
                if was_placed:
                    seconds = time.perf_counter() - start
                    self.changes.append(Change(self.call, "it was to rest", (before, 0), seconds))
                    if self.teller is not None:
                        self.teller.rests(freed)
        return freed

    def leave_annexe(self) -> int:
        """At rest: what lies on a second card leaves it; bytes. They come anew with a call."""
        annexe = self.terms.annexe
        if annexe is None or not self.rests:
            return 0
        freed = annexe.bytes
        annexe.close()
        if freed:
            annexe.card.trim()
        return freed

    def lacks(self, need: Need, arriving: int) -> int:
        """Bytes of the card, beyond what the weights take now, that a call would like to have.

        With as many weights resident as the terms allow where nothing else of this process is
        there, what the call needs, and what is left free. Never more than the room would be then.
        """
        return max(0, self._liked(need, arriving) - self.taken)

    def _liked(self, need: Need, arriving: int) -> int:
        fixed, placed = self.terms.fixed, self._placement
        if fixed is not None:
            return taken_by(fixed, need) + working_of(fixed, need)
        supply = replace(self._supply(self.card.read()), held=0)
        room = supply.room
        breath = self._breath(room)
        if placed is not None and need.allocated is not None and self._is_whole_for(need, placed):
            working = need.allocated + self.unpacking + need.slack + arriving
            return min(room, placed.taken + working + breath)
        known = self._packed is not None and self._packed[0] is self.weighed
        asked = _as_planned(need), supply, arriving, known
        if self._liking is not None and self._liking[:2] == (id(self.weighed), asked):
            return self._liking[2]
        plan = plan_call(
            self.weighed,
            need,
            replace(supply, reserve=supply.reserve + breath),
            arriving=arriving,
            mode=self.terms.mode,
            pack=self.terms.pack if known else "off",
            packs=self._packs,
            once=self.terms.once,
        )
        size = taken_by(plan, need) + working_of(plan, need) + breath if plan.fits else room
        self._liking = id(self.weighed), asked, min(room, size)
        return min(room, size)

    def _note_taken(self) -> None:
        session = self.session
        self.taken = 0 if session is None else session.taken + session.table_bytes

    def settle(self, need: Need, arriving: int, now: Reading) -> None:
        """Before a call: is there room for it, and has there been more for a while?"""
        annexe = self.terms.annexe
        if annexe is not None and annexe.bytes and annexe.excess:
            self.rest()
            self.leave_annexe()
        if self._placement is None:
            why = "the first call of its kind, or one after a failure"
            if not self._comes_back(need, arriving, now):
                self.replan(need, arriving, why="it was at rest" if self.rests else why)
            return
        if self.terms.fixed is not None:
            return
        room = self._here(now).room
        slack = need.slacks[self._placement.given]
        working = (need.allocated or 0) + self.unpacking + slack + arriving
        if need.allocated is None:
            working = 0
        if self._placement.taken + working > room:
            self._patience.was_short()
            self.replan(need, arriving, why=f"{format_bytes(room)} are there for this call")
            return
        residency = self._placement.residency
        if not self._converts_in(need, residency):
            self.replan(need, arriving, why=f"it computes in {_named(need.dtype)} now")
            return
        spare = room - working - self._placement.taken - self._breath(room)
        worth = _worth(residency, room)
        if self._patience.is_over(spare if residency.streamed else 0, worth):
            why = f"{format_bytes(spare)} more are free"
            self.replan(need, arriving, why=why, instead=self._placement)
            copied = self._placement.residency.moved_bytes
            self._patience.was_tried(spare, worth, gained=copied < residency.moved_bytes)

    def _comes_back(self, need: Need, arriving: int, now: Reading) -> bool:
        """Whether its weights are where they were before it came to rest, without another plan.

        For a call that needs the same, in about as much room.
        """
        if self._before is None or not self.rests or self.terms.fixed is not None:
            return False
        was, planned_for, residency = self._before
        wanted = replace(need, slack=need.slacks[was.given])
        if planned_for != _as_planned(wanted):
            return False
        supply = self._here(now)
        room = supply.room
        working = working_of(was.plan, wanted)
        arriving -= was.plan.stages[0].demand.inputs
        free = room - self._breath(room)
        whole = sum(piece.bytes for piece in residency.pieces) + working <= free
        gains = whole or free - was.plan.supply.room > _worth(residency, room)
        if (residency.streamed and gains) or was.taken + working + max(0, arriving) > room:
            return False
        reserved = None if self.terms.mode == "high" else supply.held + room - working
        try:
            self._place(
                was.plan,
                wanted,
                "it was at rest",
                room=reserved,
                given=was.given,
                again=residency,
            )
        except MemoryShortage as error:  # the allocator takes more than it did
            empty_frames(error)
            self._before = None
            return False
        return True

    def _converts_in(self, need: Need, residency: Residency) -> bool:
        """Whether there is room for copies of converted weights in the dtype of the call."""
        return not self.weighed.uses or (
            self.weighed.room(need.dtype).bytes <= residency.conversion
        )

    def _is_whole_for(self, need: Need, placed: Placement) -> bool:
        """Whether all weights are resident, and may be used as a call does."""
        return not placed.residency.streamed and self._converts_in(need, placed.residency)

    def has_room(self, need: Need, arriving: int, *, beside: int) -> bool:
        """Whether a call would fit with everything streamed, and `beside` bytes on the card.

        And so many twice, with no weights: results of parts, and what they are joined to.
        """
        supply = self.supply_now()
        plan = plan_call(
            self.weighed,
            need,
            _without(supply, beside),
            arriving=arriving,
            mode="none",
            pack="off",
            packs=self._packs,
        )
        return plan.fits and 2 * beside <= supply.room

    def supply_now(self) -> Supply:
        """What there is now, our own weights apart."""
        return self._supply(self.card.read())

    def _supply(self, now: Reading) -> Supply:
        supply, annexe = self._here(now), self.terms.annexe
        if annexe is None or not annexe.first:
            return supply
        return replace(supply, annexe=annexe_now(annexe, self.terms.peer))

    def _here(self, now: Reading) -> Supply:
        """Without what a second card has: it is not looked at where only the room counts."""
        ours = 0 if self.session is None else self.session.taken
        return supply_of_reading(now, self.terms.planned, ours=ours)

    def _breath(self, room: int) -> int:
        if self.card.allocator == "exact":
            return 0
        part, most = _BREATH
        breath = min(room // part, most)
        if self.card.kind == "cuda" and not self.call:
            breath = max(breath, min(_KERNELS, room // 8))
        return breath

    def replan(
        self,
        need: Need,
        arriving: int,
        *,
        why: str,
        less: int = 0,
        mode: Mode | None = None,
        instead: Placement | None = None,
    ) -> None:
        """Place the weights anew for a call; `less` bytes of the room are left out.

        In another `mode` than was asked for, if one is given. Where there is no room for all the
        slack that a loop of such calls should have, they get less. Where they are placed `instead`
        of as they are, which would do, they stay unless less is to be copied from then on.

        Raises `MemoryShortage` where not even streaming everything leaves it enough.
        """
        if self.terms.fixed is not None:
            self._place(self.terms.fixed, need, why)
            return
        asked = mode or self.terms.mode
        room = self.supply_now().room
        shortage: MemoryShortage | None = None
        margins = ((self._breath(room), 0), (0, 0), *((0, room // part) for part in PARTS))
        slacks = need.slacks
        ways = [at for at, slack in enumerate(slacks) if not at or slack < slacks[at - 1]]
        for given, (breath, part) in product(ways, margins):
            wanted = replace(need, slack=slacks[given])
            supply = self.supply_now()
            offered = _without(supply, less + part)
            plan = plan_call(
                self.weighed,
                wanted,
                replace(offered, reserve=offered.reserve + breath),
                arriving=arriving,
                mode=asked,
                pack=self.terms.pack,
                packs=self._packs,
                once=self.terms.once,
            )
            if not plan.fits:
                if given == ways[-1]:
                    shortage = shortage or plan.shortage()
                continue
            if instead is not None and instead is self._placement and not instead.is_worse(plan):
                return
            wide = _without(supply, less)
            reserved = wide.room + wide.held - working_of(plan, wanted)
            try:
                self._place(
                    plan,
                    wanted,
                    why,
                    room=None if asked == "high" else reserved,
                    given=given,
                )
            except MemoryShortage as error:  # the allocator took more than was foreseen
                empty_frames(error)
                shortage = error
                continue
            return
        assert shortage is not None
        if need.allocated is None:  # the first call of its kind will tell: there may be room for it
            self.replan(replace(need, dry=0, allocated=0), arriving, why=why, less=less, mode=mode)
            return
        try:
            raise shortage
        finally:
            shortage = None  # the error holds this frame, and with it what the call was given

    def _place(
        self,
        plan: Plan,
        need: Need,
        why: str,
        *,
        room: int | None = None,
        given: int = 0,
        again: Residency | None = None,
    ) -> None:
        """`room` is what reserved may come to while no call is under way; None is as the allocator
        has it: what was to stay is then not streamed instead. `again` is what came of it before."""
        residency = plan.stages[0].residency
        assert residency is not None
        before = 0 if self._placement is None else self._placement.residency.resident_bytes
        if self._placement is not None and residency == self._placement.residency:
            self._placed_for = _as_planned(need)
            self._placement = Placement(plan, residency, taken_by(plan, need), given)
            return
        self._placement = None
        if self.teller is not None:
            lines = plan.stages[0].ledger.lines
            self.teller.planned(
                {name: figure.bytes for name, figure in lines.items()},
                plan.supply.budget,
                [plan.stages[0].way.name],
            )
        done = self._moved(again or residency, room)
        taken = taken_by(plan, need) - residency.bytes + done.bytes
        self._placement = Placement(plan, residency, taken, given)
        self._placed_for = _as_planned(need)
        self.rests = False
        self.keepsakes = self._remembered()
        moved = (before, done.resident_bytes)
        self.changes.append(Change(self.call, why, moved, self._moving))
        if self.teller is not None:
            self.teller.moved(*moved, why, self._moving)
        self._moving = 0.0

    def _moved(self, residency: Residency, room: int | None) -> Residency:
        """What came of it, in how much time."""
        start = time.perf_counter()
        try:
            if self.session is None:
                self.session = self._stack.enter_context(
                    streamed(
                        self.module,
                        self.card,
                        residency,
                        self.weighed.blocks,
                        order=self.weighed.order,
                        pins=self.terms.pins,
                        shares=self.terms.shares,
                        annexe=self.terms.annexe,
                        others=self.terms.others,
                        traces=self.terms.traces or (self.teller is not None and self.teller.fine),
                        compares=self.terms.compares,
                        room=room,
                        teller=self.teller,
                    )
                )
            else:
                self.session.change(residency, room=room)
        finally:
            self._moving += time.perf_counter() - start
            self._note_taken()
        sizes = [group.layout.bytes for group in self.session.groups if group.packed]
        self.unpacking = scratch_for(max(sizes), self.card.device.type) if sizes else 0
        return self.session.residency

    def _packs(self) -> tuple[Packs, Rate]:
        """What the weights would take packed, and how fast the card unpacks; looked at once."""
        if self.terms.supply.unpack.per_second is None:
            unpack = measure_unpacking(self.card.device, free=self.card.read().takeable)
            if unpack is None and self.card.kind == "cuda":
                unpack = _SLOWLY
            self.terms = replace(
                self.terms, supply=replace(self.terms.supply, unpack=Rate(unpack, "measured"))
            )
        if self._packed is None or self._packed[0] is not self.weighed:
            session = self.session
            values = _as_it_is if session is None else session.master
            self._packed = (self.weighed, self.weighed.packs(values, self.card.device))
        return self._packed[1], self.terms.supply.unpack

    def lower(self, need: Need, arriving: int, less: int, mode: Mode) -> None:
        """Place the weights for a call with `less` bytes left out."""
        self.replan(need, arriving, why="the card was full", less=less, mode=mode)

    def _remembered(self) -> Keepsakes:
        name = type(self.module).__name__
        return Keepsakes(self.module, device=self.card.device, name=name)


def _without(supply: Supply, size: int) -> Supply:
    """`supply` with so many bytes less room, whether the card bounds it or the budget."""
    return replace(supply, reserve=supply.reserve + size, budget=max(0, supply.budget - size))


def _worth(residency: Residency, room: int) -> int:
    """Bytes of more room from which on another plan may keep more of what streams."""
    smallest = min((piece.bytes for piece in residency.streamed), default=0)
    return max(smallest, room // _BREATH[0])


def _as_planned(need: Need) -> Need:
    """What plans are made of: not how often calls were seen."""
    return replace(need, runs=0)


def _named(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """While weights are on the host, they are their own values."""
    return tensor
