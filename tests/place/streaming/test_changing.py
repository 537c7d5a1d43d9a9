"""Weights that move to another residency between two calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.cases.common import assert_back, virtual
from tests.place.streaming.test_streamed import (
    Drawn,
    assert_whole,
    case_of,
    drawn,
    network,
    values,
)
from tests.streaming import Case, resident
from tightfit.allocators import ALIGNMENT
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import UsageError
from tightfit.place.streaming.arena import Arena
from tightfit.place.streaming.groups import card_bytes
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.seat import Seat
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.plan.streaming.pieces import Level
from tightfit.plan.streaming.residency import Residency
from tightfit.testing import oom_after
from tightfit.units import MIB
from tightfit.weigh import weights

ALL = 2**24 - 1


@dataclass(frozen=True)
class Wanted:
    """One residency of a sequence: which pieces stay is a bit of `stays` for each."""

    level: Level
    slots: int
    stays: int

    def of(self, case: Case) -> Residency:
        return case.everything(self.level, self.slots, lambda at: bool(self.stays >> at & 1))


@st.composite
def sequences(draw: st.DrawFn) -> list[Wanted]:
    """Two to five, among them whole and nothing resident."""
    each = st.builds(
        Wanted,
        st.sampled_from(["block", "leaf"]),
        st.integers(1, 3),
        st.one_of(st.sampled_from([0, ALL]), st.integers(0, ALL)),
    )
    return draw(st.lists(each, min_size=2, max_size=4))


def allocated(card: VirtualCard) -> int:
    found = card.read().allocated
    assert found is not None
    return found


def peak(card: VirtualCard) -> int:
    found = card.read().peak_allocated
    assert found is not None
    return found


@given(drawn(), sequences())
def test_any_sequence_of_residencies_gives_the_bits_of_the_resident_one(
    made: Drawn, wanted: list[Wanted]
) -> None:
    """Calls before, between and after; each change peaks at the larger of its two ends."""
    module = network(made.width, made.kinds, tied=made.tied).to(made.dtype)
    case = Case.of(module, lambda: module(torch.zeros(1, made.width, dtype=made.dtype)))
    card = virtual("16MiB")
    card.faults.lanes = "strict"
    inputs = torch.randn(made.batch, made.width).to(made.dtype).to(card.device)
    runs = [resident(module, card, lambda o=order: module(inputs, o)) for order in made.orders]
    before, held = values(module), allocated(card)
    first, *others = residencies = [each.of(case) for each in wanted]
    most = max(card_bytes(case.groups(r), slots=r.ring.slots) for r in residencies)
    rounding = ALIGNMENT * (len(list(weights(module))) + 16)
    with (
        card.cap(held + most + rounding + max(run[1] for run in runs)),
        streamed(module, card, first, case.blocks, order=case.order) as session,
        torch.no_grad(),
    ):
        for at in range(len(wanted)):
            if at:
                start = allocated(card)
                card.reset_peaks()
                session.change(others[at - 1])
                assert peak(card) <= max(start, allocated(card))
            for order, (value, _) in zip(made.orders, runs, strict=True):
                assert torch.equal(module(inputs, order).cpu(), value)
            expected = card_bytes(session.groups, slots=residencies[at].ring.slots)
            assert session.bytes == expected
        assert session.copies.grown == 0
    assert_whole(module, before)
    assert_back(card, held)


@contextmanager
def changing(
    *, level: Level = "block", stays: int = 0, kinds: tuple[int, ...] = (0, 0, 0, 0)
) -> Iterator[tuple[nn.Module, Case, VirtualCard, Streaming, Callable[[], None]]]:
    """A session on a network, and a check that its numbers are right and copies are waited for."""
    module, card = network(kinds=kinds), virtual("16MiB")
    card.faults.lanes = "strict"
    case, x = case_of(module), torch.randn(2, 16)
    value, _ = resident(module, card, lambda: module(x.to(card.device)))
    before = values(module)

    def right() -> None:
        for _ in range(2):
            assert torch.equal(module(x).cpu(), value)

    residency = Wanted(level, 2, stays).of(case)
    with (
        streamed(module, card, residency, case.blocks, order=case.order) as session,
        torch.no_grad(),
    ):
        yield module, case, card, session, right
    assert_whole(module, before)
    assert_back(card)


def test_what_is_dropped_and_comes_again_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters are kept; those that came from the module itself go when they are packed."""
    packed: list[int] = []
    make = Arena.__init__

    def counted(self: Arena, *args: Any, **given: Any) -> None:
        make(self, *args, **given)
        packed.append(self.layout.bytes)

    monkeypatch.setattr(Arena, "__init__", counted)
    with changing(stays=ALL) as (_, case, _, session, right):
        assert not packed
        for stays in (0b11, ALL, 0b01, 0, ALL, 0b10):
            session.change(Wanted("block", 2, stays).of(case))
            right()
        assert len(packed) == len(session.groups)


def test_a_ring_that_fits_is_kept() -> None:
    """Where the same weights pass through as many slots; and so is what stays."""
    with changing(stays=0b11) as (_, case, card, session, right):
        right()
        ring, count = session.rings[0], card.allocations
        session.change(Wanted("block", 2, 0b11).of(case))
        assert session.rings == [ring]
        assert card.allocations == count
        session.change(Wanted("block", 3, 0b11).of(case))
        assert session.rings != [ring]
        right()


def test_copies_go_on_counting() -> None:
    """Those of a ring that was closed are not forgotten."""
    with changing() as (_, case, _, session, right):
        right()
        count = session.copies.count
        session.change(Wanted("block", 2, ALL).of(case))
        assert session.copies.count == count > 0
        right()
        assert session.copies.count == count


def test_a_change_inside_a_call_is_refused() -> None:
    """With nothing moved; after an interrupt there is no call any more."""
    with changing() as (module, case, _, session, right):
        residency = Wanted("block", 2, ALL).of(case)
        block: nn.Module = module.blocks[1]
        hook = block.register_forward_hook(lambda *_: session.change(residency))
        with pytest.raises(UsageError, match="between two calls"):
            right()
        hook.remove()
        right()
        hook = block.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            right()
        hook.remove()
        session.change(residency)
        right()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_threads_that_call_meanwhile_get_the_right_numbers() -> None:
    """A change waits for calls that are under way, and calls for the change."""
    with changing() as (_, case, _, session, right):
        wrong: list[BaseException] = []
        runs: list[int] = []
        stop = threading.Event()

        def work() -> None:
            try:
                with torch.no_grad():
                    while not stop.is_set():
                        right()
                        runs.append(1)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for stays in (ALL, 0, 0b101):
            session.change(Wanted("block", 2, stays).of(case))
            session.change(Wanted("leaf", 2, stays).of(case))
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert runs


def test_a_change_that_fails_leaves_all_as_it_was() -> None:
    """At each allocation in turn; while the error is still looked at, too."""
    with changing(stays=0b1001) as (_, case, card, session, right):
        wanted, before = Wanted("leaf", 3, 0b110110).of(case), session.residency
        for at in range(1000):
            try:
                with oom_after(card, at):
                    session.change(wanted)
                    break
            except torch.OutOfMemoryError:
                assert session.residency is before
                right()
        assert at >= 5
        right()


def test_a_change_that_can_neither_go_on_nor_back_refuses_calls_until_another_fits() -> None:
    """Another program took what was freed on the way; the module can still be told to use less."""
    with changing(stays=0b111) as (module, case, card, session, right):
        least = Wanted("block", 1, 0).of(case)
        size = card.spec.total - session.bytes
        taken = 0

        def steal(operator: str, wanted: int) -> None:
            nonlocal taken
            free = card.read().free
            if not taken and free > size:
                taken = free - 4 * ALIGNMENT
                card.occupy(taken)

        card.faults.on_allocate = steal
        with pytest.raises(torch.OutOfMemoryError):
            session.change(Wanted("leaf", 2, 0b111).of(case))
        card.faults.on_allocate = None
        assert taken
        assert session.bytes == 0
        for part in (module, module.blocks[0], module.blocks[0].up, module.first):
            with pytest.raises(UsageError, match="cannot be called now"):
                part(torch.zeros(1, 16))
        card.vacate(taken)
        session.change(least)
        right()


@pytest.mark.parametrize("at", [0, 1, 2, 7, 12, 13, 20, 27, 33])
def test_a_change_that_is_interrupted_leaves_a_module_that_can_be_restored(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever: calls are right or refused, and another change puts it right."""
    bring, left = Seat.bring, [at]

    def bring_or_not(seat: Seat, view: torch.Tensor) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        bring(seat, view)

    with changing(stays=0b111) as (_, case, _, session, right):
        monkeypatch.setattr(Seat, "bring", bring_or_not)
        with pytest.raises(KeyboardInterrupt):
            session.change(Wanted("block", 2, 0b11000).of(case))
        with pytest.raises(UsageError, match="cannot be called now"):
            right()
        if at % 2:
            session.change(Wanted("block", 2, 0b1).of(case))
            right()


@pytest.mark.parametrize("allocator", ["native", "async"])
def test_what_shrinks_goes_back_to_the_driver(allocator: str) -> None:
    """Each block has a segment of its own: another program gets all of it."""
    module = nn.Sequential(*(nn.Linear(1024, 3 * 1024, bias=False) for _ in range(4)))
    card = virtual(f"256MiB,allocator={allocator},grain=4MiB")
    case, size = Case.of(module, lambda: None), 12 * MIB

    def first(count: int) -> Residency:
        return case.everything("block", 1, lambda at: at < count)

    with streamed(module, card, first(3), case.blocks) as session:
        before = card.read()
        assert session.bytes == 4 * size
        for count in (2, 0, 3, 1):
            session.change(first(count))
            now = card.read()
            assert session.bytes == (count + 1) * size
            assert before.reserved - now.reserved == before.allocated - now.allocated
            assert before.reserved - now.reserved == (3 - count) * size
    card.trim()
    assert_back(card)


def test_after_each_change_pinned_is_what_streams_and_nothing_else() -> None:
    """However much may be: what stays on the card now, or does so again, is let go."""
    module, card = network(kinds=(0, 0, 0, 0), tied=False), virtual("16MiB")
    case = case_of(module)
    held: dict[int, int] = {}
    pins = Pins(
        64 * MIB,
        register=lambda at, size: held.setdefault(at, size) == size,
        unregister=held.pop,
    )
    with streamed(
        module, card, case.everything("block", 2, lambda at: at >= 2), case.blocks, pins=pins
    ) as session:
        for kept in ({2, 3, 4, 5}, {0, 1, 4, 5}, set(range(6)), {0, 1, 2, 3}, set(range(6)), {1}):
            session.change(case.everything("block", 2, lambda at, kept=kept: at in kept))
            streams = [group for group in session.groups if not group.stays]
            assert sorted(held.values()) == sorted(group.layout.bytes for group in streams)
            assert pins.asked == sum(group.layout.bytes for group in streams)
    assert not held


def test_pins_are_for_what_streams() -> None:
    """Where they are short, masters of what is on the card lose theirs to what is not."""
    module, card = network(kinds=(0, 0, 0, 0), tied=False), virtual("16MiB")
    case = case_of(module)
    held: dict[int, int] = {}
    groups = case.groups(case.everything("block", 2, lambda _: False))
    budget = 2 * 4096 * -(-max(group.layout.bytes for group in groups) // 4096)
    pins = Pins(
        budget,
        register=lambda at, size: held.setdefault(at, size) == size,
        unregister=held.pop,
    )
    with streamed(
        module, card, case.everything("block", 2, lambda at: at >= 2), case.blocks, pins=pins
    ) as session:
        assert len(held) == 2
        first = set(held)
        session.change(case.everything("block", 2, lambda at: at < 2 or at >= 4))
        assert len(held) == 2
        assert not first & set(held)
    assert not held
    assert pins.bytes == 0
