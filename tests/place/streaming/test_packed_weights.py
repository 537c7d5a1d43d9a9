"""Packed weights under a plan: the same bits, in fewer bytes, on the card and on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.cases.common import assert_back, virtual
from tests.place.streaming.test_streamed import assert_whole, values
from tests.streaming import Case, Net, resident
from tightfit.allocators import ALIGNMENT
from tightfit.card.virtual.card import VirtualCard
from tightfit.place.packing import packed as packing
from tightfit.place.packing.packed import scratch_for
from tightfit.place.streaming.packed_arena import packed_arena
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.plan.streaming.pieces import Level, Piece
from tightfit.plan.streaming.residency import Residency
from tightfit.plan.streaming.ring import NO_RING, Ring
from tightfit.testing import oom_after
from tightfit.units import MIB

WIDTH = 512
ALL = 2**24 - 1


def network(
    kinds: tuple[int, ...] = (0, 1, 0, 2, 3, 0), *, tied: bool = False
) -> tuple[Net, torch.Tensor]:
    """Trained weights have few exponents, as these have."""
    torch.manual_seed(5)
    net = Net(WIDTH, kinds, tied=tied).eval().to(torch.bfloat16)
    return net, torch.randn(2, WIDTH).to(torch.bfloat16)


def case_of(net: Net, x: torch.Tensor) -> Case:
    return Case.of(net, lambda: net(x))


def packed_residency(
    case: Case,
    level: Level,
    *,
    stays: Callable[[int], bool],
    packs: Callable[[Piece], bool],
    slots: int = 2,
    together: bool = False,
) -> Residency:
    """Pieces of a plan with those that are packed as large as they come out.

    What is in use beside others stays as it is, as in a plan, unless it may be `together`.
    """
    plain = case.everything(level, slots, stays)
    card = virtual(1 << 40)
    pieces = []
    for piece, group in zip(plain.pieces, case.groups(plain), strict=True):
        nested = level == "leaf" and not together
        beside = nested and any(held.leaf in case.weighed.apart for held in group.held)
        packs_it = packs(piece) and not beside
        arena = packed_arena(card, group.layout, tensors_of(group)) if packs_it else None
        if arena is not None:
            size = arena.bytes
            piece = replace(
                piece, bytes=size, moved=size, slot=size, converted=piece.bytes, packed=True
            )
        pieces.append(piece)
    streams = [p.slot for p, stay in zip(pieces, plain.stays, strict=True) if not stay]
    ring = Ring(level, max(streams), slots) if streams else NO_RING
    conversion = max((p.converted for p in pieces if p.packed), default=0)
    return Residency(tuple(pieces), plain.stays, ring, conversion)


def tensors_of(group: object) -> list[torch.Tensor]:
    held = {at: each.tensor for each, at in zip(group.held, group.places, strict=True)}  # type: ignore[attr-defined]
    return [held[at].detach() for at in range(len(held))]


def big(piece: Piece) -> bool:
    return piece.bytes > 1 << 18


@pytest.mark.parametrize("level", ["block", "leaf"])
@pytest.mark.parametrize("share", ["streamed", "resident", "all"])
def test_packed_weights_give_the_same_bits(level: Level, share: str) -> None:
    """Whichever of them are packed, in three steps, with every wait checked."""
    net, x = network()
    case = case_of(net, x)
    card = virtual(1 << 30)
    x_there = x.to(card.device)
    wanted, _ = resident(net, card, lambda: net(x_there))
    stays: Callable[[int], bool] = lambda at: at % 2 == 0  # noqa: E731
    plain = case.everything(level, 2, stays)
    chosen = {
        piece.name
        for piece, stay in zip(plain.pieces, plain.stays, strict=True)
        if share == "all" or stay == (share == "resident")
    }
    residency = packed_residency(
        case, level, stays=stays, packs=lambda piece: big(piece) and piece.name in chosen
    )
    assert any(piece.packed for piece in residency.pieces)
    with (
        torch.no_grad(),
        streamed(net, card, residency, case.blocks, order=case.order, compares=True) as session,
    ):
        for _ in range(3):
            assert torch.equal(net(x_there).cpu(), wanted)
        assert session.bytes <= residency.bytes + case.beside() + 4096
    assert_back(card, x_there.nbytes)


@dataclass(frozen=True)
class Wanted:
    """A residency: what stays, and what is packed, is a bit for each piece."""

    level: Level
    slots: int
    stays: int
    packs: int

    def of(self, case: Case) -> Residency:
        """For the module while it is on the host."""
        names = [piece.name for piece in case.everything(self.level, 1, lambda _: True).pieces]
        chosen = {name for at, name in enumerate(names) if self.packs >> at & 1}
        return packed_residency(
            case,
            self.level,
            stays=lambda at: bool(self.stays >> at & 1),
            packs=lambda piece: piece.name in chosen and big(piece),
            slots=self.slots,
        )


@dataclass(frozen=True)
class Drawn:
    """A network, and the order of its blocks at each step."""

    kinds: tuple[int, ...]
    tied: bool
    orders: list[list[int]]
    batch: int


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """Blocks left out, repeated and in any order, otherwise at each step."""
    kinds = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    order = st.lists(st.integers(0, len(kinds) - 1), max_size=4)
    return Drawn(
        tuple(kinds),
        draw(st.booleans()),
        draw(st.lists(order, min_size=1, max_size=2)),
        draw(st.integers(1, 3)),
    )


bits = st.one_of(st.sampled_from([0, ALL]), st.integers(0, ALL))
wanted_ones = st.builds(
    Wanted, st.sampled_from(["block", "leaf"]), st.integers(1, 3), bits, st.one_of(st.just(0), bits)
)


def allocated(card: VirtualCard) -> int:
    found = card.read().allocated
    assert found is not None
    return found


@pytest.mark.slow
@settings(max_examples=20)
@given(drawn(), st.lists(wanted_ones, min_size=1, max_size=3))
def test_any_residencies_one_after_another_give_the_bits_of_the_resident_run(
    made: Drawn, wanted: list[Wanted]
) -> None:
    """Packed or raw, streamed or resident, from each to the next, in the bytes that were told."""
    net, _ = network(made.kinds, tied=made.tied)
    x = torch.randn(made.batch, WIDTH).to(torch.bfloat16)
    case, card = case_of(net, x), virtual(1 << 30)
    card.faults.lanes = "strict"
    inputs = x.to(card.device)
    runs = [resident(net, card, lambda o=order: net(inputs, o)) for order in made.orders]
    before, held = values(net), allocated(card)
    residencies = [each.of(case) for each in wanted]
    most = max(each.bytes for each in residencies) + case.beside()
    used = max((p.converted for each in residencies for p in each.pieces if p.packed), default=0)
    rounding = ALIGNMENT * 64
    working = max(max(peak for _, peak in runs), scratch_for(used, card.device.type))
    with (
        card.cap(held + most + rounding + 2 * working),
        streamed(net, card, residencies[0], case.blocks, order=case.order) as session,
        torch.no_grad(),
    ):
        for residency in residencies:
            if residency is not residencies[0]:
                session.change(residency)
            for order, (value, _) in [*zip(made.orders, runs, strict=True)] * 2:
                assert torch.equal(net(inputs, order).cpu(), value)
            assert session.bytes <= residency.bytes + case.beside() + rounding
            assert allocated(card) - held - session.bytes <= rounding
            assert [g.name for g in session.groups if g.packed] == [
                piece.name for piece in residency.pieces if piece.packed
            ]
        assert session.copies.grown == 0
    assert_whole(net, before)
    assert_back(card, held)


@contextmanager
def streaming(
    level: Level = "block", kinds: tuple[int, ...] = (0, 0, 2), stays: int = 0b10
) -> Iterator[tuple[Net, Case, VirtualCard, Streaming, Callable[[], None]]]:
    """A session with all packed that can be, and a check that its numbers are right."""
    net, x = network(kinds)
    case, card = case_of(net, x), virtual(1 << 30)
    card.faults.lanes = "strict"
    value, _ = resident(net, card, lambda: net(x.to(card.device)))
    before = values(net)
    residency = Wanted(level, 2, stays, ALL).of(case)
    assert {True, False} == {
        stay for p, stay in zip(residency.pieces, residency.stays, strict=True) if p.packed
    }

    def right() -> None:
        for _ in range(2):
            assert torch.equal(net(x).cpu(), value)

    with (
        streamed(net, card, residency, case.blocks, order=case.order) as session,
        torch.no_grad(),
    ):
        yield net, case, card, session, right
    assert_whole(net, before)
    assert_back(card)


@pytest.mark.parametrize("level", ["block", "leaf"])
def test_state_dicts_have_the_true_values(level: Level) -> None:
    """Between calls, and in the middle of one; outside of their use weights show NaN."""
    with streaming(level) as (net, _, _, session, right):
        seen: list[bool] = []
        before: dict[str, torch.Tensor] = {}

        def look(*_: object) -> None:
            now = net.state_dict()
            seen.append(all(torch.equal(now[name], value) for name, value in before.items()))

        before = {name: value.clone() for name, value in net.state_dict().items()}
        assert not any(value.isnan().any() for value in before.values())
        handle = net.blocks[1].up.register_forward_hook(look)
        right()
        handle.remove()
        look()
        assert seen == [True] * 3
        packed = [held for group in session.groups if group.packed for held in group.held]
        assert packed
        assert all(held.tensor.isnan().all() for held in packed)


@pytest.mark.parametrize("level", ["block", "leaf"])
def test_a_step_that_runs_out_of_memory_anywhere_leaves_module_and_card_whole(
    level: Level,
) -> None:
    """At each of its allocations in turn, those of unpacking among them."""
    with streaming(level, (0,)) as (net, _, card, session, right):
        x = torch.zeros(2, WIDTH, dtype=torch.bfloat16)
        right()
        held, taken = allocated(card), session.bytes
        for at in range(1000):
            try:
                with oom_after(card, at):
                    net(x)
                    break
            except torch.OutOfMemoryError:
                pass
            assert (allocated(card), session.bytes) == (held, taken)
            if at % 8 == 0:
                right()
        assert at > 10
        right()
        assert session.copies.grown == 0


@pytest.mark.parametrize("level", ["block", "leaf"])
def test_an_interrupt_while_weights_are_unpacked_leaves_no_wrong_values(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or after the bytes were written, at each of a step's in turn."""
    prepared, left, ended = packing.prepared, [0], [False]

    def stopping(*given: Any) -> Callable[[], None]:
        decode = prepared(*given)

        def stopped() -> None:
            left[0] -= 1
            if left[0] == 0 and not ended[0]:
                raise KeyboardInterrupt
            decode()
            if left[0] == 0:
                raise KeyboardInterrupt

        return stopped

    monkeypatch.setattr(packing, "prepared", stopping)
    with streaming(level) as (net, _, card, session, right):
        right()
        held = allocated(card)
        for at in range(1, 100):
            left[0], ended[0] = at, bool(at % 2)
            try:
                net(torch.ones(2, WIDTH, dtype=torch.bfloat16))
                break
            except KeyboardInterrupt:
                pass
            assert allocated(card) == held
            left[0] = 0
            right()
        assert at > 3
        assert session._placement.scratch is not None
        assert session._placement.scratch.grown == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError, KeyError])
@pytest.mark.parametrize("level", ["block", "leaf"])
def test_after_an_error_in_the_middle_of_a_block_the_module_goes_on(
    error: type[BaseException], level: Level
) -> None:
    """The scratch is free again, without another one being made."""

    def fail(*_: object) -> None:
        raise error

    with streaming(level) as (net, _, _, session, right):
        for part in (net.blocks[0].up, net.blocks[1].down, net.blocks[2]):
            handle = part.register_forward_hook(fail)
            with pytest.raises(error):
                net(torch.ones(2, WIDTH, dtype=torch.bfloat16))
            handle.remove()
            right()
        assert session._placement.scratch is not None
        assert session._placement.scratch.grown == 0


def test_a_change_that_fails_leaves_all_as_it_was() -> None:
    """From packed to raw and from raw to packed, at each allocation in turn."""
    with streaming(kinds=(0, 0)) as (_, _, card, session, right):
        packed = session.residency
        raw = Wanted("leaf", 3, 0b110100, 0)
        net, x = network((0, 0))
        plain = raw.of(case_of(net, x))
        for wanted in (plain, packed):
            for at in range(1000):
                before = session.residency
                try:
                    with oom_after(card, at):
                        session.change(wanted)
                        break
                except torch.OutOfMemoryError:
                    assert session.residency is before
                right()
            assert at >= 3
            right()


def test_what_a_closed_ring_took_is_free() -> None:
    """However often weights are placed anew: the scratch that stays keeps no slots."""
    net, x = network((0, 0, 2))
    case, card = case_of(net, x), virtual(1 << 30)
    wanted = [Wanted("block", slots, stays, ALL) for slots in (1, 2) for stays in (0, 0b1000)]
    residencies = [each.of(case) for each in wanted]
    with (
        torch.no_grad(),
        streamed(net, card, residencies[0], case.blocks, order=case.order) as session,
    ):
        for residency in residencies[1:] * 2:
            net(x)
            session.change(residency)
            assert allocated(card) - session.bytes <= 8 * ALIGNMENT
    assert_back(card)


def test_packed_weights_that_leave_the_card_are_gone_before_others_come() -> None:
    """A change peaks at the larger of its two ends."""
    net, x = network((0, 0, 2))
    case, card = case_of(net, x), virtual(1 << 30)
    wanted = [Wanted("block", 2, stays, ALL) for stays in (0b00111, 0b11000, 0b00110, 0b11001)]
    residencies = [each.of(case) for each in wanted]
    with (
        torch.no_grad(),
        streamed(net, card, residencies[0], case.blocks, order=case.order) as session,
    ):
        for residency in residencies[1:] * 2:
            net(x)
            start = allocated(card)
            card.reset_peaks()
            session.change(residency)
            assert (card.read().peak_allocated or 0) <= max(start, allocated(card))
    assert_back(card)


class Outer(nn.Module):
    """Uses a matrix of its own before and after a layer within it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(WIDTH, WIDTH) / 16)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(functional.linear(x, self.table))
        return functional.linear(x, self.table)


def test_two_in_use_at_once_get_a_scratch_each() -> None:
    """The second one is made once; neither ever shows the values of the other."""
    torch.manual_seed(7)
    net = nn.Sequential(Outer(), Outer(), nn.Linear(WIDTH, WIDTH)).eval().to(torch.bfloat16)
    x = torch.randn(2, WIDTH).to(torch.bfloat16)
    case, card = Case.of(net, lambda: net(x)), virtual(1 << 30)
    card.faults.lanes = "strict"
    value, _ = resident(net, card, lambda: net(x.to(card.device)))
    before = values(net)
    for stays in (0, 0b11011, ALL):
        residency = packed_residency(
            case, "leaf", stays=lambda at, s=stays: bool(s >> at & 1), packs=big, together=True
        )
        assert sum(piece.packed for piece in residency.pieces) == 5
        with (
            torch.no_grad(),
            streamed(net, card, residency, case.blocks, order=case.order) as session,
        ):
            scratch = session._placement.scratch
            assert scratch is not None
            for _ in range(3):
                assert torch.equal(net(x).cpu(), value)
                assert scratch.grown == 1
            assert session.scratch_bytes == 2 * scratch.size
        assert_whole(net, before)
        assert_back(card)


def test_what_does_not_shrink_is_stored_as_it_is_where_a_plan_has_it_packed() -> None:
    """Samples may tell otherwise than all of a tensor does: the bits come back all the same."""
    net, x = network((0,))
    with torch.no_grad():
        for parameter in net.parameters():
            signs = parameter.sign() + (parameter == 0)
            parameter.copy_(signs * torch.empty(parameter.shape).uniform_(-60, -4).exp2())
    case, card = case_of(net, x), virtual(MIB * 64)
    value, _ = resident(net, card, lambda: net(x.to(card.device)))
    before = values(net)
    plain = case.everything("block", 2, lambda at: at == 1)
    pieces = tuple(replace(piece, packed=big(piece)) for piece in plain.pieces)
    with (
        torch.no_grad(),
        streamed(
            net, card, replace(plain, pieces=pieces), case.blocks, order=case.order
        ) as session,
    ):
        assert all(group.packed for group in session.groups if group.layout.bytes > 1 << 18)
        for _ in range(2):
            assert torch.equal(net(x).cpu(), value)
    assert_whole(net, before)
    assert_back(card)
