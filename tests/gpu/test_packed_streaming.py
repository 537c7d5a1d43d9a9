"""Packed weights of a module on a real card: bits, launches that are made again, memory."""

from __future__ import annotations

import gc

import pytest
import torch

import tightfit
from tests.gpu.common import driver_calls, emptied, waits_refused
from tests.place.packing.weights import gaussian, same
from tests.streaming import Net
from tightfit.card import open_card
from tightfit.place import placed
from tightfit.place.packing.codec import decode_scratch, encode, prepared
from tightfit.place.packing.recipe import TILE
from tightfit.units import MIB
from tightfit.weigh import weight_bytes

pytestmark = pytest.mark.gpu
WIDTH = 1024
KINDS = (0, 1, 0, 2, 3, 0) * 6
RUNS = 20
BF16 = torch.bfloat16


def network() -> tuple[Net, torch.Tensor]:
    """About 200 MiB in blocks of 2 to 8, and inputs on the host."""
    torch.manual_seed(0)
    module = Net(WIDTH, KINDS).eval().requires_grad_(False).to(BF16)
    return module, torch.randn(64, WIDTH).to(BF16)


@pytest.mark.parametrize("mode", ["auto", "none"])
@torch.no_grad()
def test_packed_weights_give_the_bits_of_the_resident_run(mode: str) -> None:
    """In runs one after another without a stop; nothing is left.

    Nothing more is allocated where nothing may become resident later on.
    """
    module, x = network()
    emptied()
    card, inputs = open_card("cuda:0"), x.cuda()
    with placed(module, card.device):
        expected = module(inputs).cpu()
    card.trim()
    before, held = card.read().allocated, card.read().reserved
    assert held is not None
    # cudaMallocAsync may hold some 80 MiB that are not in use, which are room for weights too.
    budget = held + weight_bytes(module) // 3 + 48 * MIB
    tightfit.fit(module, card=card, vram=budget, mode=mode, pack="on", example=(inputs,))
    session = tightfit.fitted(module).session
    assert any(group.packed for group in session.groups if not group.stays)
    there = expected.to(card.device)
    wrong = torch.zeros((), dtype=torch.int64, device=card.device)
    for _ in range(12):
        wrong += (module(inputs) != there).sum()
    card.sync()
    allocated, calls = card.read().allocated, driver_calls()
    for _ in range(RUNS):
        wrong += (module(inputs) != there).sum()
    card.sync()
    if mode == "none":
        assert (card.read().allocated, driver_calls()) == (allocated, calls)
    assert int(wrong) == 0
    assert torch.equal(module(inputs).cpu(), expected)
    del there, wrong
    tightfit.unfit(module)
    gc.collect()
    card.sync()
    assert card.read().allocated == before
    assert not any(weight.isnan().any() for weight in module.parameters())


@pytest.mark.parametrize("bits", [12, 11])
def test_a_launch_that_is_made_again_reads_what_is_there_then(bits: int) -> None:
    """In whichever stream is current, with no wait and no memory."""
    card = open_card("cuda:0")
    values = gaussian(37 * TILE + 5000, torch.Generator().manual_seed(1)).to(card.device)
    one, two = encode(values, bits=bits), encode(-values, bits=bits)
    assert one is not None
    assert two is not None
    assert one[1] == two[1]
    assert decode_scratch(one[1], "cuda") == 0
    slot, out = one[0].clone(), torch.empty_like(values)
    launch = prepared(slot, one[1], out)
    launch()
    card.sync()
    allocated = card.read().allocated
    card.reset_peaks()
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for at in range(6):
        stored, wanted = (one[0], values) if at % 2 else (two[0], -values)
        card.sync()
        peak = card.read().peak_allocated
        with waits_refused(), torch.cuda.stream(streams[at // 3]):
            slot.copy_(stored)
            launch()
        assert card.read().peak_allocated == peak
        card.sync()
        assert same(out, wanted)
        del wanted
    assert card.read().allocated == allocated


@torch.no_grad()
def test_a_packed_block_is_unpacked_anew_for_each_use() -> None:
    """Also where the order of blocks is another one from call to call."""
    module, x = network()
    card, inputs = open_card("cuda:0"), x.cuda()
    orders = [(0, 1, 2, 3, 4, 5), (5, 5, 0, 3), (2, 0, 2, 0, 4)]
    with placed(module, card.device):
        expected = [module(inputs, order).cpu() for order in orders]
    tightfit.fit(module, card=card, mode="none", pack="on", example=(inputs,))
    results = [(at, module(inputs, orders[at])) for at in (0, 1, 2, 1, 0, 2) * 2]
    assert all(torch.equal(result.cpu(), expected[at]) for at, result in results)
    tightfit.unfit(module)
