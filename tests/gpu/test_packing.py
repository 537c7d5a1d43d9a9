"""Packed weights on a CUDA card: the same bytes, the same bits, no wait and no memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.common import waits_refused
from tests.place.packing.weights import KINDS, gaussian, mixed, same
from tightfit.card import open_card
from tightfit.card.base import Card
from tightfit.place.packing import plain
from tightfit.place.packing.codec import decode, decode_scratch, encode
from tightfit.place.packing.recipe import TILE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]
BOTH = pytest.mark.parametrize("bits", [12, 11])


@pytest.fixture(name="card")
def opened() -> Iterator[Card]:
    """The first CUDA card."""
    card = open_card("cuda:0")
    yield card
    card.sync()
    card.trim()
    card.check()


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back(card: Card, kind: str, bits: int) -> None:
    """Encoded on the card and on the host to the same bytes, and decoded by the kernel."""
    draw = torch.Generator().manual_seed(1)
    values = KINDS[kind](37 * TILE + 5000, draw)
    host, there = encode(values, bits=bits), encode(values.to(card.device), bits=bits)
    assert (host is None) == (there is None)
    if host is None or there is None:
        return
    assert host[1] == there[1]
    assert torch.equal(host[0], there[0].cpu())
    out = torch.full_like(values, 1.5, device=card.device)
    decode(*there, out)
    assert same(out.cpu(), values)


@BOTH
@pytest.mark.parametrize("seed", range(20))
def test_tensors_across_tiles_come_back(card: Card, seed: int, bits: int) -> None:
    """10,000 tensors of any kind and length: escapes, raw tiles in between and at the end."""
    values = mixed(1_000_000 + seed, seed, longest=4_000).to(card.device)
    packed = encode(values, bits=bits)
    assert packed is not None
    for way in (decode, plain.decode):
        out = torch.full_like(values, 1.5)
        way(*packed, out)
        assert same(out, values)


@BOTH
def test_decoding_allocates_nothing_and_waits_for_nothing(card: Card, bits: int) -> None:
    """The kernel; a slot may be longer than what lies in it."""
    values = mixed(3_000_000, 2).to(card.device)
    packed = encode(values, bits=bits)
    assert packed is not None
    stored, recipe = packed
    slot = torch.full((recipe.bytes + 4096,), 0xEE, dtype=torch.uint8, device=card.device)
    slot[: recipe.bytes] = stored
    out = torch.empty_like(values)
    decode(slot, recipe, out)
    card.sync()
    out.zero_()
    assert decode_scratch(recipe, "cuda") == 0
    before = card.read().allocated
    card.reset_peaks()
    with waits_refused():
        decode(slot, recipe, out)
    assert card.read().peak_allocated == before
    assert same(out, values)


@BOTH
def test_plain_decoding_waits_for_nothing_and_keeps_its_word(card: Card, bits: int) -> None:
    """As on a card without Triton."""
    values = mixed(9_000_000, 3).to(card.device)
    packed = encode(values, bits=bits)
    assert packed is not None
    out = torch.empty_like(values)
    plain.decode(*packed, out)
    card.sync()
    before = card.read().allocated
    card.reset_peaks()
    with waits_refused():
        plain.decode(*packed, out)
    peak = card.read().peak_allocated
    assert peak is not None
    assert before is not None
    assert peak - before <= plain.scratch(packed[1], "cuda") <= 64 * 2**20
    assert same(out, values)


@BOTH
def test_damaged_bytes_touch_no_other_memory(card: Card, bits: int) -> None:
    """Every table overwritten: wrong values, and a card that goes on."""
    values = mixed(3_000_000, 4).to(card.device)
    packed = encode(values, bits=bits)
    assert packed is not None
    stored, recipe = packed
    around = torch.full((recipe.values + 2 * TILE,), 1.5, dtype=torch.bfloat16, device=card.device)
    at = recipe.sections
    for fill in (0xFF, 0x7F, 0x80, 0x00):
        stored[at.bases : at.raw] = fill
        decode(stored, recipe, around[TILE:-TILE])
        card.sync()
        assert around[:TILE].eq(1.5).all()
        assert around[-TILE:].eq(1.5).all()


@BOTH
def test_more_than_2_to_31_values_come_back(card: Card, bits: int) -> None:
    """Offsets are of 64 bits: a buffer of 4 GiB and a little."""
    if (card.read().free or 0) < 16 * 2**30:
        pytest.skip("needs 16 GiB of free memory")
    some = gaussian(2**22, torch.Generator().manual_seed(5)).to(card.device)
    values = some.repeat(2**31 // len(some) + 1)
    values[::1_000_003] = float("nan")
    packed = encode(values, bits=bits)
    assert packed is not None
    out = torch.empty_like(values)
    decode(*packed, out)
    assert same(out, values)
