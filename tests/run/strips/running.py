"""Runs a call in strips on a virtual card, and checks what has to hold whatever it is."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from tests.cases.common import assert_back, virtual
from tightfit.card.virtual.card import VirtualCard
from tightfit.place import placed
from tightfit.place.lanes import compute_of, open_lane
from tightfit.plan.strips.laying import Laying
from tightfit.plan.strips.layout import Layout
from tightfit.plan.strips.playing import Rates
from tightfit.plan.strips.stages import staged
from tightfit.run.strips.keeping import Lanes
from tightfit.run.strips.program import Program, programmed
from tightfit.run.strips.runner import Runner
from tightfit.testing import faults
from tightfit.weigh import weights
from tightfit.weigh.network.recorder import record

Call = Callable[[torch.Tensor], torch.Tensor]
RATES = Rates(1e12, 25e9)


@dataclass(frozen=True)
class Stripped:
    """A run in strips: what came out, how it was laid out, and the most it took beside weights."""

    value: torch.Tensor
    layout: Layout
    peak: int


@dataclass(frozen=True)
class Network:
    """A call of a module that was written down."""

    module: nn.Module
    call: Call
    program: Program
    laying: Laying

    @classmethod
    def of(
        cls,
        module: nn.Module,
        call: Call,
        source: torch.Tensor,
        *,
        from_end: int = 2,
        reset: Callable[[], None] = lambda: None,
    ) -> Network:
        """For inputs like `source`, cut along the axis `from_end` from the end."""
        with placed(module, "meta"):
            empty = torch.empty(source.shape, dtype=source.dtype, device="meta")
            graph = record(module, call, empty)
        reset()
        device = virtual("1GiB").device
        program = programmed(graph, from_end=from_end, device=device, scratch=lambda *_: 0.0)
        return cls(module, call, program, Laying(program.network, staged(program.network), RATES))

    def whole(self, source: torch.Tensor) -> torch.Tensor:
        """As it is, on the host."""
        with torch.no_grad():
            return self.call(source)

    def run(
        self,
        source: torch.Tensor,
        room: int,
        *,
        on_card: bool = True,
        card: VirtualCard | None = None,
        before_strip: Callable[[], None] = lambda: None,
    ) -> Stripped | None:
        """In `room` bytes of a card; None where no layout fits. Nothing is left there."""
        layout = self.laying.within(room, given_on_card=on_card)
        if layout is None:
            return None
        card = card or virtual("1GiB")
        arena = torch.empty(max(1, layout.host_bytes), dtype=torch.uint8)

        def host(offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            size = torch.Size(shape).numel() * dtype.itemsize
            assert offset + size <= layout.host_bytes or not size
            return arena[offset : offset + size].view(dtype).view(shape)

        with placed(self.module, card.device), faults(card, lanes="strict", lane_seed=1):
            given = source.to(card.device) if on_card else source
            lanes = Lanes(compute_of(card), open_lane(card), open_lane(card))
            before = card.read().allocated
            card.reset_peaks()
            held = {each.path: each.tensor for each in weights(self.module)}
            runner = Runner(self.program, layout, held, card.device, lanes, host, before_strip)
            try:
                value = runner.run(given)
                peak = card.read().peak_allocated
                assert card.read().allocated == before
            finally:
                del given, runner, held
                gc.collect()
        assert_back(card)
        assert not card.hazards
        assert before is not None
        assert peak is not None
        return Stripped(value, layout, peak - before)


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Rms of the difference, as a share of the rms of `other`."""
    off = (one.double() - other.double()).square().mean().sqrt()
    return float(off / other.double().square().mean().sqrt().clamp_min(1e-30))


def allowed(layout: Layout) -> int:
    """Bytes that a run may take: what was planned, rows that a view pins (3 %), and what a card
    takes at least for each tensor: statistics of strips, and what an operator needs beside."""
    return int(layout.card_bytes * 1.03) + 16 * 1024 + 3 * 512 * layout.most_strips
