"""What streams lies on a second card, as far as there is room: the same bits, all given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cases.common import assert_back, virtual
from tests.place.streaming.test_streamed import assert_whole, case_of, network, values
from tests.streaming import Net, resident
from tightfit.card.virtual.card import VirtualCard
from tightfit.place.lanes import open_lane
from tightfit.place.streaming.annexe import Annexe
from tightfit.place.streaming.arena import Arena
from tightfit.place.streaming.filed import Filed
from tightfit.place.streaming.masters import Masters, Wish
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.plan.budget import Budget
from tightfit.run.ladder.refused import unless_full
from tightfit.testing import oom_after
from tightfit.units import KIB, MIB

WIDTH = 64


def annexe_of(card: VirtualCard, size: int, *, first: bool = True, spare: int = 0) -> Annexe:
    """Of `size` bytes of `card`."""
    budget = Budget(size)
    return Annexe(card, lambda: budget, first=first, unless_full=unless_full, spare=spare)


def inputs() -> torch.Tensor:
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(2))


def whole(module: Net) -> torch.Tensor:
    """As everything on the card has it."""
    card = virtual(MIB)
    return resident(module, card, lambda: module(inputs().to(card.device)))[0]


@contextmanager
def streaming(
    module: Net, card: VirtualCard, annexe: Annexe | None, *, every: int = 3, compares: bool = True
) -> Iterator[Streaming]:
    """All but one in `every` pieces stream."""
    case = case_of(module)
    residency = case.everything("block", 2, lambda at: at % every == every - 1)
    with (
        torch.no_grad(),
        streamed(
            module,
            card,
            residency,
            case.blocks,
            order=case.order,
            annexe=annexe,
            compares=compares,
        ) as session,
    ):
        yield session


def parked(session: Streaming) -> list[bool]:
    """For each master that streams, whether it has a copy on the other card."""
    store = session._placement.store
    masters = [store.take(group) for group in session.groups if not group.stays]
    return [master.parked is not None for master in masters]


@pytest.mark.parametrize("size", [0, 40 * KIB, 100 * KIB, MIB])
def test_bits_are_the_same_and_both_cards_keep_within_their_budgets(size: int) -> None:
    """With no room there, with some, and with more than is wanted; nothing stays on either."""
    module = network(WIDTH)
    before, expected = values(module), whole(module)
    one, two = virtual(MIB), virtual(4 * MIB)
    annexe = annexe_of(two, size)
    with streaming(module, one, annexe) as session:
        for _ in range(3):
            assert torch.equal(module(inputs()).cpu(), expected)
        there = parked(session)
        assert 0 <= (two.read().allocated or 0) - annexe.bytes < 512 * (len(there) + 1)
        assert (two.read().peak_reserved or 0) <= size
        assert any(there) == (size > 0)
        assert all(there) == (size == MIB)
        state = module.state_dict()
        assert all(torch.equal(state[path], before[path]) for path in state if path in before)
    assert_whole(module, before)
    assert annexe.bytes == 0
    for card in (one, two):
        assert_back(card)


def test_those_that_lie_there_are_spread_among_the_others() -> None:
    """What comes from the host is slower: two in a row would be waited for."""
    module = network(WIDTH, (0,) * 12)
    size = sum(each.nbytes for each in module.blocks[0].state_dict().values())
    two = virtual(MIB)
    with streaming(module, virtual(MIB), annexe_of(two, 6 * (size + KIB)), every=100) as session:
        there = parked(session)[1:-1]
    assert 4 <= sum(there) <= 7
    assert "TTTT" not in "".join("FT"[each] for each in there)
    assert "FFFF" not in "".join("FT"[each] for each in there)


@pytest.mark.parametrize("strict", ["strict", True])
def test_no_wait_is_missing(strict: str | bool) -> None:
    """With copies as late as a real card may make them."""
    module = network(WIDTH)
    expected = whole(module)
    one, two = virtual(MIB), virtual(MIB)
    one.faults.lanes = strict  # type: ignore[assignment]
    one.faults.lane_seed = 3
    with streaming(module, one, annexe_of(two, 200 * KIB), compares=False) as session:
        for _ in range(4):
            assert torch.equal(module(inputs()).cpu(), expected)
        assert any(parked(session))
    assert one.hazards == ()


def test_what_lies_there_takes_no_host_memory_and_no_pins(tmp_path: Path) -> None:
    """Weights stay in their file; without the other card they would be read into memory."""
    module = network(WIDTH, tied=False)
    expected = whole(module)
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    module.load_state_dict(load_file(tmp_path / "w.safetensors"), assign=True, strict=False)
    for annexe in (None, annexe_of(virtual(4 * MIB), 2 * MIB)):
        with streaming(module, virtual(MIB), annexe) as session:
            assert torch.equal(module(inputs()).cpu(), expected)
            assert (session.host.arena_bytes == 0) == (annexe is not None)
            assert session.pinned_bytes == 0
            assert session.host.filed_bytes == 0


def test_a_card_that_is_full_all_at_once_is_no_loss() -> None:
    """What was refused there is copied from the host; nothing is raised, and nothing retried."""
    module = network(WIDTH)
    expected = whole(module)
    two = virtual(MIB)
    asked: list[int] = []

    def refuse(operator: str, size: int) -> None:
        asked.append(size)
        if len(asked) > 2:
            raise torch.OutOfMemoryError(f"{operator}: somebody else was faster")

    two.faults.on_allocate = refuse
    with streaming(module, virtual(MIB), annexe_of(two, MIB)) as session:
        assert torch.equal(module(inputs()).cpu(), expected)
        assert sum(parked(session)) == 2 < len(parked(session))
    assert_back(two)


def test_a_little_is_left_to_what_else_the_card_does() -> None:
    """So much of the budget is never taken, and what others hold counts."""
    two = virtual(MIB)
    assert annexe_of(two, 512 * KIB, spare=100 * KIB).room == 412 * KIB
    two.occupy(900 * KIB)
    assert annexe_of(two, 512 * KIB).room == 124 * KIB
    taken = torch.empty(100 * KIB, dtype=torch.uint8, device=two.device)
    assert annexe_of(two, 512 * KIB).room == 24 * KIB
    del taken


@pytest.mark.parametrize("allocator", ["native", "async", "expandable"])
def test_reserved_stays_within_the_budget_of_any_allocator(allocator: str) -> None:
    """Which takes more than it is asked for."""
    two = virtual(f"256MiB,allocator={allocator},context=2MiB")
    annexe, host = annexe_of(two, 70 * MIB), Masters(virtual(MIB))
    for size in (11 * MIB, 3 * MIB, 900 * KIB, 20 * MIB, 9 * MIB, 9 * MIB, 30 * MIB, MIB, KIB):
        annexe.park(host.take(Wish.of([torch.zeros(size, dtype=torch.uint8)])))
        assert (two.read().reserved or 0) <= 70 * MIB
    assert annexe.bytes > 30 * MIB
    annexe.close()
    host.close()
    two.trim()
    assert_back(two)


def test_what_is_not_wanted_any_more_makes_way() -> None:
    """Other weights stream after a change, and those that stay now leave the other card."""
    module = network(WIDTH, (0,) * 8)
    case, expected = case_of(module), whole(module)
    block = sum(each.nbytes for each in module.blocks[0].state_dict().values()) + 2 * KIB
    one, two = virtual(MIB), virtual(MIB)
    annexe = annexe_of(two, 4 * block)
    odd = case.everything("block", 2, lambda at: at % 2 == 1)
    even = case.everything("block", 2, lambda at: at % 2 == 0)
    with (
        torch.no_grad(),
        streamed(module, one, odd, case.blocks, order=case.order, annexe=annexe) as session,
    ):
        for residency in (odd, even, odd):
            session.change(residency)
            assert torch.equal(module(inputs()).cpu(), expected)
            assert sum(parked(session)) >= 3
            assert (two.read().allocated or 0) <= 4 * block
        before = annexe.bytes
        session.rest()
        assert annexe.bytes == before  # so that it comes back by copies alone
        annexe.close()  # somebody wants the card: it is found again without
        assert two.read().allocated == 0
        session.change(odd)
        assert torch.equal(module(inputs()).cpu(), expected)
    assert_back(one)
    assert_back(two)


def test_all_is_given_back_after_an_error() -> None:
    """In the middle of placing, and in a call."""
    module = network(WIDTH)
    before = values(module)
    one, two = virtual(MIB), virtual(MIB)
    with (
        pytest.raises(torch.OutOfMemoryError),
        oom_after(one, 2),
        streaming(module, one, annexe_of(two, MIB)),
    ):
        raise AssertionError("not reached")
    for card in (one, two):
        assert_back(card)
    with streaming(module, one, annexe_of(two, MIB)):
        assert two.read().allocated
        with pytest.raises(RuntimeError):
            module(torch.zeros(3, 5))
    for card in (one, two):
        assert_back(card)
    assert_whole(module, before)


def test_where_the_host_is_faster_only_what_cannot_be_pinned_goes_there() -> None:
    """Then the other card stands in for memory that is not held in place."""
    pins = Pins(300 * KIB, register=lambda _at, _size: True, unregister=lambda _at: None)
    wishes = [Wish.of([torch.randn(100, 256)]) for _ in range(4)]
    two = virtual(MIB)
    host = Masters(virtual(MIB), pins=pins, annexe=annexe_of(two, MIB, first=False))
    host.plan(wishes)
    masters = [host.take(wish) for wish in wishes]
    assert {type(master) for master in masters} == {Arena, Filed}
    for master in masters:
        assert master.pinned == (master.parked is None)
        target = torch.empty(master.bytes, dtype=torch.uint8, device=host.lane._lane._card.device)  # type: ignore[attr-defined]
        master.send(host.lane, target)
        host.lane.drain()
        assert torch.equal(target.cpu(), master.buffer)
    host.close()
    del master, masters
    assert_back(two)


def test_a_lane_refuses_what_is_no_copy_from_another_card() -> None:
    """From the host, from the card itself, and with gaps."""
    one, two = virtual(MIB), virtual(MIB)
    lane = open_lane(one)
    here, there = (torch.zeros(4, 4, device=card.device) for card in (one, two))
    for target, source in ((here, here), (there, here), (here, there.t()[:2]), (here[:2], there)):
        with pytest.raises(ValueError, match="copies from another card to this one"):
            lane.copy_peer(target, source)
    with pytest.raises(ValueError, match="copies from another card"):
        lane.copy_peer(here, torch.zeros(4, 4))
    lane.copy_peer(here, there + 1)
    lane.drain()
    assert torch.equal(here.cpu(), torch.ones(4, 4))
