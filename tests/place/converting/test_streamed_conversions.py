"""Weights stored in eight bits under a plan: the same bits, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases.common import assert_back, virtual
from tests.place.converting.nets import case_of, meant, network, residency_of
from tests.place.streaming.test_streamed import assert_whole, values
from tests.streaming import Case, Net, resident
from tightfit.allocators import ALIGNMENT
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.place.converting import converter as converting
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.plan.streaming.pieces import Level
from tightfit.testing import oom_after

WIDTH = 160
ROUNDING = ALIGNMENT * 64


def allocated(card: VirtualCard) -> int:
    found = card.read().allocated
    assert found is not None
    return found


levels: list[Level] = ["block", "leaf"]


@pytest.mark.parametrize("level", levels)
@pytest.mark.parametrize("stays", [0, 0b10101010101010101, 2**40 - 1])
@pytest.mark.parametrize(
    ("others", "dtype"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.float32),
    ],
)
def test_converted_weights_give_the_bits_of_those_that_are_meant(
    level: Level, stays: int, others: torch.dtype, dtype: torch.dtype
) -> None:
    """Streamed, resident or both, with every wait checked; the reference is whole on a card.

    Halves beside them follow a call in float32, and what is in float32 is not narrowed.
    """
    net, x = network(dtype=others), torch.randn(2, WIDTH).to(dtype)
    case, card = case_of(net, x), virtual(1 << 30)
    inputs = x.to(card.device)
    right = meant(net, dtype)
    wanted, peak = resident(right, card, lambda: right(inputs))
    residency = residency_of(case, level, stays=stays, dtype=dtype)
    held = allocated(card)
    assert residency.conversion > 0
    with (
        torch.no_grad(),
        card.cap(held + residency.bytes + case.beside() + peak + ROUNDING),
        streamed(net, card, residency, case.blocks, order=case.order, compares=True) as session,
    ):
        for _ in range(3):
            assert torch.equal(net(inputs).cpu(), wanted)
        assert session.bytes <= residency.bytes + case.beside() + ROUNDING
        assert session.scratch_bytes == residency.conversion
    assert_back(card, held)


bits = st.one_of(st.sampled_from([0, 2**40 - 1]), st.integers(0, 2**40 - 1))
wishes = st.tuples(st.sampled_from(levels), st.integers(1, 3), bits)


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.booleans(),
    st.lists(st.lists(st.integers(0, 2), max_size=4), min_size=1, max_size=2),
    st.lists(wishes, min_size=1, max_size=3),
)
def test_any_residencies_one_after_another_give_the_same_bits(
    kinds: list[int],
    tied: bool,
    orders: list[list[int]],
    wanted: list[tuple[Level, int, int]],
) -> None:
    """In the bytes that were told, and the module is as it was afterwards."""
    net, x = network(tuple(kinds), tied=tied), torch.randn(2, WIDTH)
    orders = [[at % len(kinds) for at in order] for order in orders]
    case, card = case_of(net, x), virtual(1 << 30)
    card.faults.lanes = "strict"
    inputs = x.to(card.device)
    right = meant(net, torch.float32)
    runs = [resident(right, card, lambda o=order: right(inputs, o)) for order in orders]
    before, held = values(net), allocated(card)
    residencies = [
        residency_of(case, level, stays=stays, slots=slots, dtype=torch.float32)
        for level, slots, stays in wanted
    ]
    most = max(each.bytes for each in residencies) + case.beside()
    working = max(peak for _, peak in runs)
    with (
        card.cap(held + most + ROUNDING + working),
        streamed(net, card, residencies[0], case.blocks, order=case.order) as session,
        torch.no_grad(),
    ):
        for residency in residencies:
            if residency is not residencies[0]:
                session.change(residency)
            for order, (value, _) in [*zip(orders, runs, strict=True)] * 2:
                assert torch.equal(net(inputs, order).cpu(), value)
            assert session.bytes <= residency.bytes + case.beside() + ROUNDING
            assert allocated(card) - held - session.bytes <= ROUNDING
        assert session.copies.grown == 0
    assert_whole(net, before)
    assert_back(card, held)


@contextmanager
def streaming(
    level: Level = "block", kinds: tuple[int, ...] = (0, 0, 2), stays: int = 0b10
) -> Iterator[tuple[Net, Case, VirtualCard, Streaming, Callable[[], None]]]:
    """A session, and a check that its numbers are right."""
    net, x = network(kinds), torch.randn(2, WIDTH)
    case, card = case_of(net, x), virtual(1 << 30)
    card.faults.lanes = "strict"
    right_net = meant(net, torch.float32)
    value, _ = resident(right_net, card, lambda: right_net(x.to(card.device)))
    before = values(net)
    residency = residency_of(case, level, stays=stays, dtype=torch.float32)

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


@pytest.mark.parametrize("level", levels)
def test_state_dicts_have_what_is_stored(level: Level) -> None:
    """Between calls, and in the middle of one: in eight bits, with the scales."""
    with streaming(level) as (net, _, _, _, right):
        before = {name: value.clone() for name, value in net.state_dict().items()}
        assert any(name.endswith("scale_weight") for name in before)
        seen: list[bool] = []

        def look(*_: object) -> None:
            now = net.state_dict()
            assert {n: v.dtype for n, v in now.items()} == {n: v.dtype for n, v in before.items()}
            pairs = [(now[name], value) for name, value in before.items()]
            seen.append(all(torch.equal(a.float().cpu(), b.float()) for a, b in pairs))

        handle = net.blocks[1].up.register_forward_hook(look)
        right()
        handle.remove()
        look()
        assert seen == [True] * 3


@pytest.mark.parametrize("level", levels)
def test_a_weight_has_the_stored_dtype_between_calls_and_the_used_one_within(level: Level) -> None:
    """Code that casts its input to the dtype of a weight, as T5 does, sees what it will meet."""
    with streaming(level) as (net, _, _, _, right):
        layers = {name: part for name, part in net.named_modules() if hasattr(part, "weight")}
        stored = {name: part.weight.dtype for name, part in layers.items()}
        assert torch.float8_e4m3fn in stored.values()
        seen: list[set[torch.dtype]] = []

        def look(*_: object) -> None:
            seen.append({part.weight.dtype for part in layers.values()})

        handle = net.blocks[1].register_forward_pre_hook(look)
        right()
        handle.remove()
        assert seen == [{torch.float32}] * 2
        assert {name: part.weight.dtype for name, part in layers.items()} == stored


@pytest.mark.parametrize("level", levels)
def test_a_step_that_runs_out_of_memory_anywhere_leaves_all_whole(level: Level) -> None:
    """At each of its allocations in turn."""
    with streaming(level, (0,)) as (net, _, card, session, right):
        x = torch.zeros(2, WIDTH)
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
        assert at > 5
        right()
        assert session.copies.grown == 0


@pytest.mark.parametrize("level", levels)
def test_an_interrupt_while_weights_are_converted_leaves_no_wrong_values(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or after a copy was written, at each of a step's in turn."""
    convert, left = converting.convert, [0]

    def stopped(*given: object, **named: object) -> None:
        left[0] -= 1
        if left[0] == 0 and before:
            raise KeyboardInterrupt
        convert(*given, **named)  # type: ignore[arg-type]
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(converting, "convert", stopped)
    with streaming(level) as (net, _, card, _, right):
        right()
        held = allocated(card)
        for at in range(1, 100):
            left[0], before = at, bool(at % 2)
            try:
                net(torch.ones(2, WIDTH))
                break
            except KeyboardInterrupt:
                pass
            assert allocated(card) == held
            left[0] = 0
            right()
        assert at > 5


def test_a_call_in_a_dtype_that_was_not_planned_takes_its_room_once() -> None:
    """Half precision needs less and uses what there is; what needs more is seen."""
    net = network((0, 3))
    x = torch.randn(2, WIDTH)
    case, card = case_of(net, x), virtual(1 << 30)
    small = residency_of(case, "block", dtype=torch.bfloat16)
    right = meant(net, torch.float32)
    wanted, _ = resident(right, card, lambda: right(x.to(card.device)))
    with (
        torch.no_grad(),
        streamed(net, card, small, case.blocks, order=case.order) as session,
    ):
        assert session.scratch_bytes == small.conversion
        for _ in range(2):
            assert torch.equal(net(x).cpu(), wanted)
            assert session.scratch_bytes == case.weighed.room(torch.float32).bytes
    assert_back(card)


def test_compiled_blocks_give_the_same_bits() -> None:
    """What is done before and after a converted layer is no part of a graph."""
    torch._dynamo.reset()
    net, x = network((0, 0, 3)), torch.randn(2, WIDTH)
    case, card = case_of(net, x), open_card("cpu")
    residency = residency_of(case, "block", stays=0b10, dtype=torch.float32)
    with (
        torch.no_grad(),
        streamed(net, card, residency, case.blocks, order=case.order),
    ):
        wanted = net(x)
        for block in net.blocks:
            block.compile(backend="eager")
        for _ in range(3):
            assert torch.equal(net(x), wanted)
    torch._dynamo.reset()
