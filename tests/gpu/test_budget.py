"""A budget below a real card bounds its allocator while a call runs, and no longer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tightfit
from tests.api.test_fitting import Greedy
from tests.streaming import Net
from tightfit.card import open_card
from tightfit.card.base import Card
from tightfit.errors import MemoryShortage
from tightfit.units import MIB
from tightfit.weigh import weight_bytes

pytestmark = pytest.mark.gpu


def fraction() -> float:
    """Of the card, what PyTorch lets this process have now."""
    return float(torch.cuda.get_per_process_memory_fraction())


def budget_of(card: Card, more: int) -> int:
    """What is held already, and `more`."""
    card.trim()
    held = card.read().reserved
    assert held is not None
    return held + more


def test_the_allocator_is_bounded_in_calls_alone() -> None:
    """Also by an interrupt in a block; under cudaMallocAsync it is left as it is."""
    card = open_card("cuda:0")
    torch.manual_seed(0)
    module, x = Net(1024, (0, 1, 0, 2, 3, 0)).eval().requires_grad_(False), torch.randn(8, 1024)
    budget, total = budget_of(card, weight_bytes(module) + 64 * MIB), card.read().total
    assert total is not None
    before, inside = fraction(), []
    interrupts: list[BaseException] = []

    def look(*_: object) -> None:
        inside.append(fraction())
        if interrupts:
            raise interrupts.pop()

    module.blocks[2].register_forward_pre_hook(look)
    with torch.no_grad():
        tightfit.fit(module, card=card, vram=budget, example=(x,))
        assert fraction() == before
        inside.clear()
        module(x)
        assert fraction() == before
        interrupts.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            module(x)
        assert fraction() == before
        module(x)
    assert fraction() == before
    assert len(inside) == 3
    if card.allocator == "async":
        assert set(inside) == {before}
    else:
        assert all(0 < each <= budget / total * (1 + 1e-9) for each in inside)
    tightfit.unfit(module)
    assert fraction() == before


def test_a_call_that_takes_more_than_foreseen_stays_within_the_budget() -> None:
    """Though the card has much more free: what cannot be within is refused, what can is run."""
    card = open_card("cuda:0")
    if card.allocator == "async":
        pytest.skip("under cudaMallocAsync a budget below the card is planned for, not enforced")
    module: nn.Module = Greedy().eval()
    width = next(module.parameters()).shape[0]
    x = torch.zeros(2, width)
    budget = budget_of(card, 256 * MIB)
    card.reset_peaks()
    with torch.no_grad():
        tightfit.fit(module, card=card, vram=budget)
        module(x)
        x[0, 0] = 64 * MIB // 4
        module(x)
        x[0, 0] = 512 * MIB // 4
        with pytest.raises(MemoryShortage):
            module(x)
        peak = card.read().peak_reserved
        assert peak is not None
        assert peak <= budget
        x[0, 0] = 0
        module(x)
    tightfit.unfit(module)
