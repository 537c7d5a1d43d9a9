"""Q01, fp8 weights and a wider input: the run that was planned in `test_q01`."""

from __future__ import annotations

import re

import torch
from torch import nn

import tightfit
from tests.cases.common import assert_back, virtual
from tightfit.card.virtual.card import VirtualCard
from tightfit.testing import faults
from tightfit.units import MIB

FP8 = torch.float8_e4m3fn


class Fan(nn.Module):
    """Six layers that are fed the same input."""

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.layers = nn.ModuleList(nn.Linear(2560, 4096, bias=False) for _ in range(6))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x) for layer in self.layers]


def fan() -> tuple[Fan, Fan]:
    """In fp8, and in float32 with the same values."""
    torch.manual_seed(1)
    stored, right = Fan(), Fan()
    for one, two in zip(stored.layers, right.layers, strict=True):
        weight = torch.randn(4096, 2560).to(FP8)
        one.weight = nn.Parameter(weight, requires_grad=False)
        two.weight = nn.Parameter(weight.float(), requires_grad=False)
    return stored, right


def run(net: Fan, x: torch.Tensor, card: VirtualCard) -> list[torch.Tensor]:
    return [each.cpu() for each in net(x.to(card.device))]


def test_q01_it_finishes_within_the_card_and_equals_the_dequantised_weights() -> None:
    """64 MiB hold one layer, a slot, and one layer as float32; nothing is copied ahead."""
    net, right = fan()
    x = torch.randn(1, 8, 2560)
    free = virtual(1024 * MIB)
    expected = run(right.to(free.device), x, free)
    card = virtual(64 * MIB)
    with faults(card, lanes="strict"):
        tightfit.fit(net, card=card, example=(x,))
        for _ in range(2):
            assert all(map(torch.equal, run(net, x, card), expected))
        found = tightfit.fitted(net)
        assert not found.attempts
        peak = card.read().peak_allocated
        assert peak is not None
        assert peak <= 64 * MIB
        (stage,) = found.plan.stages
        assert stage.residency is not None
        assert stage.ledger.lines["conversion"].bytes == 40 * MIB == found.session.scratch_bytes
        assert re.search(r"\nconversion +40\.0 MiB", found.explain())
        assert len(stage.resident) == 1
        assert stage.residency.ring.slots == 1
        taken = stage.residency.bytes + 6 * 8 * 4096 * 4 + x.nbytes
        assert taken <= peak <= taken + MIB
        tightfit.unfit(net)
    assert_back(card)
    assert all(layer.weight.dtype == FP8 for layer in net.layers)


def test_q01_with_room_for_all_it_is_the_same_numbers_and_the_conversion_still_counts() -> None:
    """All that is stored fits into 104 MiB with it, and not into 100."""
    net, right = fan()
    x = torch.randn(1, 8, 2560)
    free = virtual(1024 * MIB)
    expected = run(right.to(free.device), x, free)
    for budget, keeps_all in ((104, True), (100, False)):
        card = virtual(budget * MIB)
        tightfit.fit(net, card=card, example=(x,))
        assert all(map(torch.equal, run(net, x, card), expected))
        found = tightfit.fitted(net)
        assert (len(found.plan.stages[0].resident) == 6) == keeps_all
        assert found.session.scratch_bytes == 40 * MIB
        assert (card.read().peak_allocated or 0) <= budget * MIB
        tightfit.unfit(net)
        assert_back(card)
