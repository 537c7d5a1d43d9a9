"""Weights that are stored in eight bits on a real card: the host's bits, and no memory beside."""

from __future__ import annotations

import pytest
import torch

import tightfit
from tests.gpu.common import emptied
from tests.place.converting.nets import SCALINGS, Scaling, meant, network, scale_of
from tests.place.converting.test_scaling import COLUMNS, ROWS, every_value
from tightfit.card import open_card
from tightfit.place.converting.scaling import convert
from tightfit.units import MIB
from tightfit.weigh import weight_bytes
from tightfit.weigh.conversions import COMPUTES, grid_of

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize("used", COMPUTES)
@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16])
def test_the_card_converts_to_the_bits_of_the_host_in_the_copy_alone(
    scaling: Scaling, dtype: torch.dtype, used: torch.dtype, scales: torch.dtype
) -> None:
    """Of every value that there is; nothing else is allocated meanwhile."""
    card = open_card("cuda:0")
    stored, scale = every_value(dtype), scale_of(scaling, ROWS, COLUMNS)
    scale = None if scale is None else scale.to(scales)
    grid = "tensor" if scale is None else grid_of(scale.shape, stored.shape)
    assert grid is not None
    wanted = torch.empty(ROWS, COLUMNS, dtype=used)
    convert(stored, wanted, scale=scale, grid=grid)
    there = stored.to(card.device)
    factor = None if scale is None else scale.to(card.device)
    copy = torch.empty(ROWS, COLUMNS, dtype=used, device=card.device)
    card.sync()
    card.reset_peaks()
    before = card.read().allocated
    convert(there, copy, scale=factor, grid=grid)
    assert card.read().peak_allocated == before
    assert torch.equal(copy.cpu(), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_module_gives_the_bits_of_the_weights_that_are_meant(dtype: torch.dtype) -> None:
    """Resident and streamed, in steady state without an allocation that stays."""
    emptied()
    card = open_card("cuda:0")
    net, x = network((0, 3, 0), width=1024, dtype=dtype), torch.randn(8, 1024).to(dtype)
    right = meant(net, dtype).to(card.device)
    with torch.no_grad():
        wanted = right(x.to(card.device)).cpu()
    del right
    card.trim()
    held = card.read().reserved
    assert held is not None
    budget = held + 4 * weight_bytes(net) + 96 * MIB
    for mode in ("high", "none"):
        tightfit.fit(net, card=card, mode=mode, vram=budget, example=(x,))
        with torch.no_grad():
            assert torch.equal(net(x).cpu(), wanted)
            card.sync()
            before = card.read().allocated
            for _ in range(3):
                assert torch.equal(net(x).cpu(), wanted)
            card.sync()
            assert card.read().allocated == before
        tightfit.unfit(net)
