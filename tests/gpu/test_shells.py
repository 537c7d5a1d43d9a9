"""Weights that are more than one tensor on a real card: bits, where they say they are, no wait."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.gpu.common import waits_refused
from tests.packed_layers import Code, Coded, Layers, coded_layers, four_bit_layers
from tests.streaming import Case
from tightfit.card import open_card
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.streamed import streamed
from tightfit.units import GIB

pytestmark = pytest.mark.gpu
WIDTH, COUNT = 1024, 6
Make = Callable[[int, int], Layers]
BOTH = pytest.mark.parametrize("make", [coded_layers, four_bit_layers])


def on_the_card(make: Make, device: torch.device) -> Layers:
    """Another one with the same values, all of it on the card, by nobody's streaming."""

    def moved(state: Code) -> Code:
        found = copy.copy(state)
        for name, value in vars(state).items():
            if isinstance(value, Code):
                setattr(found, name, moved(value))
            elif isinstance(value, torch.Tensor):
                setattr(found, name, value.to(device))
        return found

    module = make(WIDTH, COUNT)
    for layer in module.layers:
        weight: Any = layer.weight
        there: Any
        if isinstance(weight, Coded):
            data, scale = weight._data.to(device), weight._scale.to(device)
            there = nn.Parameter(Coded(data, scale, moved(weight.state)), requires_grad=False)
        else:
            there = nn.Parameter(weight.detach().to(device), requires_grad=False)
            there.quant_state = layer.quant_state = moved(weight.quant_state)
        layer.weight = there
        layer.bias = nn.Parameter(layer.bias.detach().to(device), requires_grad=False)
    return module


@BOTH
@torch.no_grad()
def test_shells_give_the_bits_of_resident_ones_and_the_host_never_waits(make: Make) -> None:
    """Twenty runs one after another, some layers streamed and some not; nothing is left."""
    card = open_card("cuda:0")
    module, x = make(WIDTH, COUNT), torch.randn(8, WIDTH).to(card.device)
    expected = on_the_card(make, card.device)(x).cpu()
    card.sync()
    before, pins = card.read().allocated, Pins.cuda(GIB)
    case = Case.of(module, lambda: module(torch.zeros(2, WIDTH)))
    residency = case.everything("leaf", 2, lambda at: at % 3 == 1)
    with streamed(module, card, residency, case.blocks, order=case.order, pins=pins) as session:
        assert pins.bytes
        for _ in range(3):
            module(x)
        card.sync()
        allocated = card.read().allocated
        with waits_refused():
            results = [module(x) for _ in range(20)]
        assert all(torch.equal(result.cpu(), expected) for result in results)
        del results
        assert card.read().allocated == allocated
        assert session.copies.count
        assert session.copies.grown == 0
    assert pins.bytes == 0
    assert card.read().allocated == before


@BOTH
@pytest.mark.parametrize("mode", ["high", "none"])
@torch.no_grad()
def test_fitted_shells_are_where_they_say_and_come_back(make: Make, mode: str) -> None:
    """All that they are made of is on the card in a call, and on the host when it is over."""
    card = open_card("cuda:0")
    module, x = make(WIDTH, COUNT), torch.randn(8, WIDTH)
    at_home = module(x)
    expected = on_the_card(make, card.device)(x.to(card.device)).cpu()
    weights: list[Any] = [layer.weight for layer in module.layers]
    tightfit.fit(module, card=card, mode=mode, example=(x,))
    for _ in range(2):
        for weight in weights:
            if isinstance(weight, Coded):
                weight.seen.clear()
        assert torch.equal(module(x).cpu(), expected)
        for weight in weights:
            if isinstance(weight, Coded):
                assert weight.seen == [{card.device}]
    tightfit.unfit(module)
    assert all(each is layer.weight for each, layer in zip(weights, module.layers, strict=True))
    assert {weight.device.type for weight in weights} == {"cpu"}
    assert torch.equal(module(x), at_home)
