"""A01: memory comes in grains, and a plan that adds up tensors runs out with "free" memory left."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch

from tests.cases.common import virtual
from tightfit.card.virtual.card import VirtualCard
from tightfit.plan.streaming.pieces import Piece
from tightfit.plan.streaming.replan import Drift, replan
from tightfit.plan.streaming.ring import NO_RING
from tightfit.units import KIB, MIB

SEEDS = 100
CARDS = {
    "2 MiB": "256MiB,allocator=async,grain=2MiB",
    "32 MiB": "256MiB,allocator=async,grain=32MiB",
    "native": "256MiB,allocator=native",
    "expandable": "256MiB,allocator=expandable",
}


@dataclass
class Loader:
    """Places weights one at a time and plans the rest anew after each."""

    card: VirtualCard
    placed: list[torch.Tensor] = field(default_factory=list)
    streamed: list[Piece] = field(default_factory=list)
    drift: Drift = field(init=False)

    def __post_init__(self) -> None:
        """Nothing was seen yet."""
        self.drift = Drift.at_first(self.card.allocator)

    def load(self, pieces: list[Piece]) -> None:
        """Every piece ends on the card or among the streamed; planned anew when the gap grows."""
        room, ring = self.card.spec.total, NO_RING
        stays: list[bool] = []
        for at, piece in enumerate(pieces):
            if not stays:
                planned = replan(pieces[at:], self.drift, room=room, ring=ring)
                if planned is not None and planned.ring.slots and not ring.slots:
                    ring = planned.ring
                    for _ in range(ring.slots):
                        self._take(ring.slot_bytes)
                    planned = replan(pieces[at:], self.drift, room=room, ring=ring)
                if planned is None:
                    self.streamed += pieces[at:]
                    return
                stays = list(planned.stays)
            if not stays.pop(0):
                self.streamed.append(piece)
                continue
            gap = self.drift.gap
            self._take(piece.bytes)
            if self.drift.gap > gap:
                stays = []

    def _take(self, size: int) -> None:
        self.placed.append(torch.empty(size, dtype=torch.uint8, device=self.card.device))
        reading = self.card.read()
        assert reading.allocated is not None
        assert reading.reserved is not None
        self.drift = self.drift.after(allocated=reading.allocated, reserved=reading.reserved)


def _weights(seed: int) -> list[Piece]:
    """More than the card holds, of 10 KB to 20 MB each."""
    rolls = random.Random(seed)
    pieces: list[Piece] = []
    while sum(piece.bytes for piece in pieces) < 320 * MIB:
        size = int(10 * KIB * 2 ** rolls.uniform(0, 11))
        pieces.append(Piece(f"w{len(pieces)}", size, size, size, 0, 1.0, False))
    return pieces


@pytest.mark.slow
@pytest.mark.parametrize("kind", CARDS)
def test_a01_a_hundred_models_load_without_running_out(kind: str) -> None:
    """However the allocator rounds; and what the plan lets in fills most of the card."""
    filled = []
    for seed in range(SEEDS):
        loader = Loader(virtual(CARDS[kind]))
        loader.load(_weights(seed))
        reading = loader.card.read()
        assert reading.refusals == 0
        assert reading.reserved is not None
        assert reading.reserved <= loader.card.spec.total
        assert loader.streamed
        filled.append((reading.allocated or 0) / loader.card.spec.total)
    assert min(filled) > 2 / 3


@pytest.mark.parametrize(("kind", "grain"), [("2 MiB", 2 * MIB), ("32 MiB", 32 * MIB)])
def test_a01_the_grain_is_learnt_from_what_reserved_does(kind: str, grain: int) -> None:
    """From the rises alone: nothing tells the planner which allocator it is."""
    loader = Loader(virtual(CARDS[kind]))
    loader.load(_weights(7))
    assert loader.drift.grain is not None
    assert loader.drift.grain % grain == 0
    assert loader.drift.grain <= 4 * grain


@pytest.mark.parametrize("kind", ["2 MiB", "32 MiB"])
def test_a01_a_plan_that_adds_up_tensors_runs_out(kind: str) -> None:
    """The fault itself, so that the test above can fail: the same weights, placed by their sum."""
    card = virtual(CARDS[kind])
    room, chosen = card.spec.total, []
    for piece in _weights(3):
        if piece.bytes <= room:
            chosen.append(piece.bytes)
            room -= piece.bytes
    with pytest.raises(torch.OutOfMemoryError):
        _ = [torch.empty(size, dtype=torch.uint8, device=card.device) for size in chosen]
