"""Weights that leave the card between two calls, and come back by copies alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.cases.common import assert_back, virtual
from tests.place.converting import nets
from tests.place.streaming.test_changing import ALL, Wanted, allocated, changing, interrupt
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
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.seat import Seat
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.testing import oom_after
from tightfit.units import MIB

STAYS = (0, 0b1001, ALL)


def elements(module: nn.Module) -> int:
    """Bytes that stand for weights that are away."""
    return ALIGNMENT * len({tensor.dtype for tensor in module.state_dict().values()})


def assert_at_rest(session: Streaming, module: nn.Module, card: VirtualCard, base: int = 0) -> None:
    """Nothing of it is on the card, as the card and the session count."""
    assert session.rests
    assert (session.bytes, session.taken, session.rings) == (0, 0, [])
    assert allocated(card) == base + elements(module)


@given(
    drawn(),
    st.lists(st.tuples(st.sampled_from(["block", "leaf"]), st.integers(0, ALL)), max_size=2),
    st.sampled_from(STAYS),
)
def test_after_any_rest_a_residency_gives_the_bits_of_the_resident_one(
    made: Drawn, others: list[tuple[Any, int]], first: int
) -> None:
    """The same one or another; each rest leaves the card as it was, but for one element of each
    dtype, and tells how much came free."""
    module = network(made.width, made.kinds, tied=made.tied).to(made.dtype)
    case = Case.of(module, lambda: module(torch.zeros(1, made.width, dtype=made.dtype)))
    card = virtual("16MiB")
    card.faults.lanes = "strict"
    inputs = torch.randn(made.batch, made.width).to(made.dtype).to(card.device)
    runs = [resident(module, card, lambda o=order: module(inputs, o)) for order in made.orders]
    before, held = values(module), allocated(card)
    start = Wanted("block", 2, first).of(case)
    rest = [start, *(Wanted(level, 2, stays).of(case) for level, stays in others)]
    with streamed(module, card, start, case.blocks, order=case.order) as session, torch.no_grad():
        for residency in rest:
            there = allocated(card)
            assert session.rest() == there - allocated(card)
            assert_at_rest(session, module, card, held)
            session.change(residency)
            assert not session.rests
            for order, (value, _) in zip(made.orders, runs, strict=True):
                assert torch.equal(module(inputs, order).cpu(), value)
        session.rest()
    assert_whole(module, before)
    assert_back(card, held)


@pytest.mark.parametrize("allocator", ["exact", "native", "async", "expandable"])
@pytest.mark.parametrize("stays", STAYS)
def test_at_rest_the_card_has_its_bytes_back(allocator: str, stays: int) -> None:
    """Also the driver: what is reserved is the page of what stands for weights that are away."""
    module = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4))).eval()
    card = virtual(f"256MiB,allocator={allocator},grain=4MiB")
    case, x = Case.of(module, lambda: None), torch.randn(2, 1024)
    value, _ = resident(module, card, lambda: module(x.to(card.device)))
    residency = Wanted("block", 2, stays).of(case)
    with streamed(module, card, residency, case.blocks) as session, torch.no_grad():
        for _ in range(3):
            assert torch.equal(module(x).cpu(), value)
            assert session.rest() >= 4 * MIB
            assert_at_rest(session, module, card)
            assert (card.read().reserved or 0) <= card.grain
            session.change(residency)
    card.trim()
    assert_back(card)


def test_at_rest_weights_show_that_they_are_away_and_state_dicts_do_not() -> None:
    """Calls of the whole and of its parts are refused, and say why."""
    with changing(stays=0b111) as (module, case, _, session, right):
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        right()
        session.rest()
        assert all(parameter.isnan().all() for parameter in module.parameters())
        now = module.state_dict()
        assert all(torch.equal(now[name], tensor) for name, tensor in before.items())
        part: Any = module
        for each in (part, part.blocks[0], part.blocks[0].up, part.first):
            with pytest.raises(UsageError, match="it is at rest"):
                each(torch.zeros(1, 16))
        session.change(Wanted("block", 2, 0b111).of(case))
        right()


def test_a_second_rest_frees_nothing() -> None:
    """And does no harm."""
    with changing(stays=0b11) as (module, case, card, session, right):
        assert session.rest() > 0
        assert session.rest() == 0
        assert_at_rest(session, module, card)
        session.change(Wanted("leaf", 2, 0b1).of(case))
        right()


def test_pins_stay_and_nothing_is_packed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is asked for nothing, neither on the way out nor on the way back."""
    module, card = network(kinds=(0, 0, 0, 0), tied=False), virtual("16MiB")
    case, asked = case_of(module), []
    pins = Pins(
        64 * MIB,
        register=lambda at, size: asked.append((at, size)) is None,
        unregister=asked.append,
    )
    residency = Wanted("block", 2, 0b11).of(case)
    with streamed(module, card, residency, case.blocks, pins=pins) as session:
        made, held = list(asked), session.pinned_bytes
        assert held
        make = Arena.__init__

        def refused(*args: Any) -> None:
            make(*args)
            raise AssertionError("packed again")

        monkeypatch.setattr(Arena, "__init__", refused)
        for _ in range(2):
            session.rest()
            assert session.pinned_bytes == held
            session.change(residency)
            assert session.pinned_bytes == held
        assert asked == made


@pytest.mark.parametrize("stays", STAYS)
def test_stored_weights_rest_too(stays: int) -> None:
    """Those that are converted for each use: the room for copies goes with them."""
    net, x = nets.network((0, 3, 0), width=64, dtype=torch.float32), torch.randn(2, 64)
    case = nets.case_of(net, x)
    card = virtual("16MiB")
    card.faults.lanes = "strict"
    residency = nets.residency_of(case, "leaf", stays=stays, dtype=torch.float32)
    with (
        streamed(net, card, residency, case.blocks, order=case.order) as session,
        torch.no_grad(),
    ):
        wanted = net(x).cpu()
        assert session.scratch_bytes
        for _ in range(2):
            session.rest()
            assert (session.bytes, session.taken) == (0, 0)
            assert allocated(card) <= 8 * ALIGNMENT
            session.change(residency)
            assert torch.equal(net(x).cpu(), wanted)
    assert_back(card)


class Keeps(nn.Module):
    """Has a table, one that each call moves, and one that calls make and the next one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.table, self.moved = torch.randn(8), torch.randn(8)
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.moved = self.moved.to(x.device) * 1.0
        x = x if self.last is None else x + self.last
        self.last = self.layer(x) + self.table + self.moved
        return self.last


@pytest.mark.parametrize("ends_at_rest", [False, True])
def test_tables_go_home_and_come_back(ends_at_rest: bool) -> None:
    """Those that a call made keep their values; afterwards everything is what it was at first."""
    module, card = Keeps(), virtual("1MiB")
    case = Case.of(module, lambda: None)
    module.last = None
    table, moved, x = module.table, module.moved, torch.randn(1, 8)
    with torch.no_grad():
        wanted = [module(x), module(x), module(x)]
    module.last, module.moved = None, moved
    residency = case.everything("block", 1, lambda _: True)
    with streamed(module, card, residency, case.blocks) as session, torch.no_grad():
        for value in wanted:
            torch.testing.assert_close(module(x).cpu(), value)
            session.rest()
            assert_at_rest(session, module, card)
            assert module.table is table
            session.change(residency)
            assert module.table.device == card.device
        if ends_at_rest:
            session.rest()
    assert module.table is table
    assert module.moved is moved
    module.last = None
    assert_back(card)


def test_a_rest_inside_a_call_is_refused() -> None:
    """With nothing moved; after an interrupt there is no call any more."""
    with changing() as (module, case, _, session, right):
        part: Any = module
        hook = part.blocks[1].register_forward_hook(lambda *_: session.rest() and None)
        with pytest.raises(UsageError, match="between two calls"):
            right()
        hook.remove()
        right()
        hook = part.blocks[1].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            right()
        hook.remove()
        session.rest()
        session.change(Wanted("block", 2, ALL).of(case))
        right()


def test_a_rest_that_does_not_wait_is_refused_while_another_thread_calls() -> None:
    """One that does waits for the end of that call."""
    with changing() as (module, case, card, session, right):
        part: Any = module
        begun, go_on = threading.Event(), threading.Event()

        def pause(*_: object) -> None:
            begun.set()
            assert go_on.wait(30)

        hook = part.blocks[1].register_forward_hook(pause)

        def call() -> None:
            with torch.no_grad():
                module(torch.zeros(1, 16))

        thread = threading.Thread(target=call)
        thread.start()
        assert begun.wait(30)
        with pytest.raises(UsageError, match="another thread"):
            session.rest(waits=False)
        assert session.bytes
        waiting = threading.Thread(target=session.rest)
        waiting.start()
        go_on.set()
        thread.join()
        waiting.join()
        hook.remove()
        assert_at_rest(session, module, card)
        session.change(Wanted("block", 2, ALL).of(case))
        right()


@pytest.mark.parametrize("at", [0, 1, 2, 7, 12, 13, 20])
@pytest.mark.parametrize("again", [False, True])
def test_a_rest_that_is_interrupted_is_finished(
    at: int, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is at rest all the same, or, where it was interrupted twice, the next change puts it
    right; or it is closed as a whole module."""
    bring, left = Seat.bring, [at]

    def bring_or_not(seat: Seat, view: torch.Tensor) -> None:
        left[0] -= 1
        if left[0] == -1 or (again and left[0] == -2):
            raise KeyboardInterrupt
        bring(seat, view)

    with changing(stays=0b111) as (module, case, card, session, right):
        right()
        monkeypatch.setattr(Seat, "bring", bring_or_not)
        with pytest.raises(KeyboardInterrupt):
            session.rest()
        with pytest.raises(UsageError, match="cannot be called now"):
            right()
        if not again:
            assert_at_rest(session, module, card)
        if at % 2:
            session.change(Wanted("block", 2, 0b1).of(case))
            right()


def test_where_the_card_is_full_it_stays_at_rest() -> None:
    """At each allocation of the way back in turn; nothing is left of the try."""
    with changing(stays=0b1001) as (module, case, card, session, right):
        wanted = Wanted("leaf", 3, 0b110110).of(case)
        session.rest()
        for at in range(1000):
            try:
                with oom_after(card, at):
                    session.change(wanted)
                    break
            except torch.OutOfMemoryError:
                assert_at_rest(session, module, card)
        assert at >= 5
        right()


def test_what_was_written_to_on_the_card_is_not_lost_without_a_word() -> None:
    """A rest says so as the next call would, and moves nothing."""
    with changing(stays=ALL) as (module, _, _, session, right):
        right()
        part: Any = module
        part.first.bias.add_(0)
        with pytest.raises(UsageError, match="was written to"):
            session.rest()
        assert session.bytes


def test_after_the_end_there_is_no_rest() -> None:
    """There is nothing that could."""
    with changing() as (_, _, _, session, _):
        pass
    with pytest.raises(UsageError, match="not streamed any more"):
        session.rest()
