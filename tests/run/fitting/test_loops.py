"""Loops of equal calls on cards whose allocator keeps a cache."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import tightfit
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.plan.slack import Moves, least_reserved, replay, steady_reserved
from tightfit.units import MIB

WIDTH = 512


def walk(seed: int) -> Moves:
    """Tensors of 2 to 48 MiB that live for some steps, as activations do."""
    draw = random.Random(seed)
    ends: dict[int, list[int]] = {}
    moves: list[tuple[int, int]] = []
    for at in range(16):
        moves += [(key, 0) for key in ends.pop(at, [])]
        moves.append((at, draw.randint(2, 48) * MIB))
        ends.setdefault(at + draw.randint(1, 6), []).append(at)
    return [*moves, *((key, 0) for at in sorted(ends) for key in ends[at])]


class Busy(nn.Module):
    """Layers, and between them tensors that come and go."""

    def __init__(self, moves: Moves) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(len(moves)))
        self.moves = moves

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, WIDTH] to the same."""
        live = {}
        for layer, (key, size) in zip(self.layers, self.moves, strict=True):
            if size:
                live[key] = torch.empty(size, dtype=torch.uint8, device=x.device)
            else:
                live.pop(key, None)
            x = layer(x)
        return x


@pytest.mark.parametrize("seed", [78, 521, 1060, 2216])
@pytest.mark.parametrize("beside", [60 * MIB, 96 * MIB])
def test_a_loop_soon_needs_no_retries(seed: int, beside: int) -> None:
    """Beside little more than what a single call needs: after 8 calls none has any more.

    The bits are those of the host all along, and the card never holds more than it has.
    """
    moves = walk(seed)
    module, x = Busy(moves).eval(), torch.randn(2, WIDTH)
    room = least_reserved(moves, "native") + beside
    card = open_card(f"virtual:{room}B,allocator=native")
    assert isinstance(card, VirtualCard)
    retries = []
    with torch.no_grad():
        wanted = module(x)
        tightfit.fit(module, card=card, example=(x,))
        for _ in range(12):
            before = card.read().retries
            assert torch.equal(module(x).cpu(), wanted)
            retries.append(card.read().retries - before)
            card.check()
    peak = card.read().peak_reserved
    tightfit.unfit(module)
    assert retries[8:] == [0] * 4
    assert peak is not None
    assert peak <= room
    assert card.read().allocated == 0


def test_where_one_call_holds_alone_a_loop_is_not_refused() -> None:
    """Between the least and what a loop should have: it may have retries, and runs."""
    moves = walk(2216)
    module, x = Busy(moves).eval(), torch.randn(2, WIDTH)
    room = least_reserved(moves, "native") + 30 * MIB
    assert room < steady_reserved(moves, "native")
    card = open_card(f"virtual:{room}B,allocator=native")
    with torch.no_grad():
        wanted = module(x)
        tightfit.fit(module, card=card, example=(x,))
        assert all(torch.equal(module(x).cpu(), wanted) for _ in range(4))
    tightfit.unfit(module)


def test_retries_of_a_card_that_got_smaller_stop_too() -> None:
    """Somebody takes memory in the middle of a loop, which goes on with fewer weights."""
    moves = walk(1060)
    module, x = Busy(moves).eval(), torch.randn(2, WIDTH)
    room = replay(moves, "native").reserved + 64 * MIB
    card = open_card(f"virtual:{room}B,allocator=native")
    assert isinstance(card, VirtualCard)
    with torch.no_grad():
        wanted = module(x)
        tightfit.fit(module, card=card, example=(x,))
        for _ in range(3):
            module(x)
        card.trim()
        card.occupy(room // 4)
        for _ in range(8):
            assert torch.equal(module(x).cpu(), wanted)
        before = card.read().retries
        for _ in range(3):
            assert torch.equal(module(x).cpu(), wanted)
        assert card.read().retries == before
    tightfit.unfit(module)


def test_a_library_gets_the_scratch_that_it_was_refused_in_silence() -> None:
    """It went on with another algorithm; within a few calls weights make way for it."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8))).eval()
    x = torch.randn(256, WIDTH)
    card = open_card("virtual:6MiB")
    assert isinstance(card, VirtualCard)
    card.faults.silent_workspace = True
    with torch.no_grad():
        tightfit.fit(module, card=card, example=(x,))
        before = tightfit.fitted(module).session.resident_bytes
        card.faults.workspace = lambda operator, size: size // 2 if "mm" in operator else 0
        refused = []
        for _ in range(8):
            seen = card.read()
            module(x)
            refused.append(card.read().refused_since(seen))
        after = tightfit.fitted(module).session.resident_bytes
    tightfit.unfit(module)
    assert refused[0]
    assert refused[-2:] == [0, 0]
    assert after < before
