"""More is reserved than was foreseen, while weights are placed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.cases.common import assert_back, virtual
from tests.streaming import Case, resident
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import MemoryShortage
from tightfit.place.streaming.streamed import streamed
from tightfit.plan.streaming.residency import Residency
from tightfit.units import KIB, MIB

SEED = (10240, 10240, *[1280] * 4, *[320] * 6)
"""KiB of the modules of the second seed (320, 40 and 10 MiB), a thirty-second of them."""


class Layer(nn.Module):
    """`size` KiB of weights, used twice: [B, 64] to [B, 64]."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size * 4, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x @ self.weight.T) @ self.weight, dim=-1)


def layers(*sizes: int) -> tuple[Case, torch.Tensor]:
    torch.manual_seed(0)
    module, x = nn.Sequential(*map(Layer, sizes)).requires_grad_(False), torch.randn(2, 64)
    return Case.of(module, lambda: module(x)), x


def stays(case: Case) -> Residency:
    return case.everything("block", 2, lambda _: True)


def reserved(card: VirtualCard) -> int:
    found = card.read().peak_reserved
    assert found is not None
    return found


def test_the_steps_of_the_second_seed_are_those_that_were_seen() -> None:
    """320 MiB add 320; 40 add 64, 32, 32, 32; 10 add 32, 0, 0, 32: here a thirty-second of it."""
    card = virtual("64MiB,allocator=async,grain=1MiB")
    kept, steps = [], []
    for size in (10240, 1280, 1280, 1280, 1280, 320, 320, 320, 320):
        before = reserved(card)
        kept.append(torch.empty(size * KIB, dtype=torch.uint8, device=card.device))
        steps.append((reserved(card) - before) // MIB)
    assert steps == [10, 2, 1, 1, 1, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("allocator", "sizes", "spare"),
    [("async", SEED, 64), ("native", [10752] * 6, 6 * 1024), ("native", [700] * 30, 2 * 1024)],
)
def test_what_is_not_placed_is_planned_again_when_the_gap_grows(
    allocator: str, sizes: tuple[int, ...], spare: int
) -> None:
    """By its bytes all of it fits. Unwatched, reserved passes the room; watched, it never does."""
    case, x = layers(*sizes)
    room = (sum(sizes) + spare) * KIB
    spec = f"128MiB,allocator={allocator},grain=1MiB"
    plain, card, free = virtual(spec), virtual(spec), virtual("128MiB")
    wanted, _ = resident(case.module, free, lambda: case.module(x.to(free.device)))
    with streamed(case.module, plain, stays(case), case.blocks) as session:
        assert reserved(plain) > room
        assert session.replanned == ()
    with (
        streamed(case.module, card, stays(case), case.blocks, room=room) as session,
        torch.no_grad(),
    ):
        assert reserved(card) <= room
        gone = [name for told in session.replanned for name in told.gone]
        assert gone
        assert set(gone) == {piece.name for piece in session.residency.streamed}
        assert all(told.room == room for told in session.replanned)
        assert session.bytes >= room // 3 or sizes[0] < 1024
        for _ in range(2):
            assert torch.equal(case.module(x).cpu(), wanted)
    card.trim()
    assert_back(card)


@pytest.mark.parametrize("allocator", ["async", "native", "exact"])
def test_where_the_gap_is_as_planned_nothing_is_changed(allocator: str) -> None:
    """With room for what the allocator takes beside."""
    case, _ = layers(*SEED)
    card = virtual(f"128MiB,allocator={allocator},grain=1MiB")
    room = sum(SEED) * KIB + 48 * MIB
    with streamed(case.module, card, stays(case), case.blocks, room=room) as session:
        assert session.replanned == ()
        assert not session.rings


def test_a_ring_that_was_planned_is_there_for_what_is_planned_again() -> None:
    """Its bytes are held from the start, so that they are part of what is watched."""
    case, x = layers(*[1280] * 8, *[320] * 8)
    card = virtual("64MiB,allocator=async,grain=1MiB")
    residency = case.everything("block", 2, lambda at: at > 3)
    room = residency.bytes + 300 * KIB
    with (
        streamed(case.module, card, residency, case.blocks, room=room) as session,
        torch.no_grad(),
    ):
        assert reserved(card) <= room
        assert session.replanned
        assert session.ring_bytes == 2 * 1280 * KIB
        case.module(x)
        assert session.copies.grown == 0


def test_a_change_is_watched_as_well() -> None:
    """Growing into a room that is enough by bytes alone."""
    case, _ = layers(*SEED)
    card = virtual("64MiB,allocator=async,grain=1MiB")
    room = (sum(SEED) + 64) * KIB
    nothing = case.everything("block", 1, lambda at: at > 1)
    with streamed(case.module, card, nothing, case.blocks) as session:
        session.change(nothing)
        card.reset_peaks()
        session.change(stays(case), room=room)
        assert reserved(card) <= room
        assert session.replanned
        session.change(nothing)
    card.trim()
    assert_back(card)


def test_a_room_that_is_not_enough_for_anything_is_refused_with_the_figures() -> None:
    """Before the card is full; and nothing is left on it."""
    case, _ = layers(10240, 10240)
    card = virtual("64MiB")
    with (
        pytest.raises(MemoryShortage, match="Not enough memory to place the weights"),
        streamed(case.module, card, stays(case), case.blocks, room=9 * MIB),
    ):
        pytest.fail("it was taken")
    assert_back(card)
    assert reserved(card) <= MIB
