"""Packing gives back every bit, and never takes more bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.place.packing.weights import HOSTILE, KINDS, PLAIN, gaussian, mixed, of_bits, same
from tightfit.card import open_card
from tightfit.place.packing.codec import Recipe, decode, decode_scratch, encode
from tightfit.place.packing.recipe import TILE

BOTH = pytest.mark.parametrize("bits", [12, 11])
LIMIT = 1.002


def share(values: torch.Tensor, bits: int) -> float:
    """Bytes packed over bytes raw; checks that every bit comes back, and what the recipe says."""
    packed = encode(values, bits=bits)
    if packed is None:
        return 1.0
    stored, recipe = packed
    assert stored.shape == (recipe.bytes,)
    assert Recipe.from_text(recipe.to_text()) == recipe
    out = torch.full_like(values, 1.5)
    decode(stored, recipe, out)
    assert same(out, values), recipe
    return recipe.bytes / (2 * values.numel())


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_tensors_of_each_kind_come_back(kind: str, bits: int) -> None:
    """250 tensors of a tile each, of every kind, in buffers of 50: 5,750 a format in all."""
    for seed in range(5):
        draw = torch.Generator().manual_seed(seed)
        values = torch.cat([KINDS[kind](TILE, draw) for _ in range(50)])
        assert share(values, bits) <= LIMIT


@BOTH
@pytest.mark.parametrize("seed", range(10))
def test_tensors_across_tiles_come_back(seed: int, bits: int) -> None:
    """Some 5,000 tensors of any kind and length in buffers, so that tiles hold several of them."""
    assert share(mixed(1_000_000 + seed, seed, longest=4_000), bits) <= LIMIT


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_any_length_come_back(kind: str, bits: int) -> None:
    """Alone, around a tile, and with a last tile that is nearly empty or nearly full."""
    draw = torch.Generator().manual_seed(1)
    for count in (0, 1, 255, 6144, TILE - 1, TILE, TILE + 1, 3 * TILE - 7, 5 * TILE + 300):
        assert share(KINDS[kind](count, draw), bits) <= LIMIT


@BOTH
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 20_000), st.integers(0, 2**20)),
        min_size=1,
        max_size=5,
    )
)
def test_any_mixture_comes_back(parts: list[tuple[str, int, int]], bits: int) -> None:
    """Kinds, lengths and seeds as they come."""
    values = [KINDS[kind](n, torch.Generator().manual_seed(seed)) for kind, n, seed in parts]
    assert share(torch.cat(values), bits) <= LIMIT


@BOTH
def test_all_bit_patterns_come_back(bits: int) -> None:
    """All 65,536, as they lie in order and spread among weights."""
    every = of_bits(torch.arange(65536))
    assert share(every, bits) <= LIMIT
    values = gaussian(65536 * 40, torch.Generator().manual_seed(2))
    values[::40] = every
    assert share(values, bits) < 1


@pytest.mark.parametrize("kind", PLAIN)
def test_12_bits_have_no_cliffs(kind: str) -> None:
    """Zeros, denormals, and what stands out of each tile cost next to nothing."""
    draw = torch.Generator().manual_seed(3)
    assert share(PLAIN[kind](100 * TILE, draw), 12) <= 0.7525


@BOTH
def test_tiles_that_do_not_shrink_stay_raw_among_others(bits: int) -> None:
    """One hostile tile in three costs no more than itself."""
    draw = torch.Generator().manual_seed(4)
    tiles = [KINDS["any bits" if n % 3 == 1 else "gaussian"](TILE, draw) for n in range(60)]
    values = torch.cat([*tiles, HOSTILE["any bits"](777, draw)])
    packed = encode(values, bits=bits)
    assert packed is not None
    assert packed[1].packed == 40
    assert packed[1].ordered
    assert packed[1].tail_raw
    assert share(values, bits) < (40 * 0.753 + 21) / 61


def test_what_cannot_shrink_is_not_packed() -> None:
    """A bias of a few values, and bits without order."""
    draw = torch.Generator().manual_seed(5)
    assert encode(gaussian(1000, draw)) is None
    assert encode(HOSTILE["any bits"](20 * TILE, draw)) is None


@BOTH
def test_windows_are_nearly_the_best(bits: int) -> None:
    """A sample chooses them: within a tenth of a percent of what looking at every value gives."""
    window, draw = (15 if bits == 12 else 7), torch.Generator().manual_seed(6)
    for kind in ("gaussian", "uniform", "fp8", "a tenth zeros", "zero rows and columns"):
        values = KINDS[kind](50 * TILE, draw)
        exponents = (values.view(torch.int16).view(50, TILE) >> 7) & 255
        best = 0
        for row in exponents:
            kinds = torch.bincount(row, minlength=256)
            if bits == 12:
                kinds[0] = 0
            best += int(kinds.sum() - kinds.unfold(0, window, 1).sum(1).max())
        packed = encode(values, bits=bits)
        assert packed is not None
        if packed[1].packed == 50:
            assert packed[1].escapes <= best * 1.06 + 4 * 50


@BOTH
def test_every_device_has_the_same_bytes_and_reads_them(bits: int) -> None:
    """A virtual card encodes and decodes as the host does."""
    values = mixed(40 * TILE + 500, 7)
    card = open_card("virtual:64MiB")
    packed, there = encode(values, bits=bits), encode(values.to(card.device), bits=bits)
    assert packed is not None
    assert there is not None
    assert there[1] == packed[1]
    assert torch.equal(there[0].cpu(), packed[0])
    out = torch.empty(len(values), dtype=torch.bfloat16, device=card.device)
    decode(there[0], packed[1], out)
    assert same(out.cpu(), values)


@BOTH
@pytest.mark.parametrize("tiles", [1, 60, 400])
def test_decoding_takes_no_more_than_it_says(tiles: int, bits: int) -> None:
    """Beside what it is given; bounded, however large that is."""
    values = gaussian(tiles * TILE, torch.Generator().manual_seed(8))
    if tiles > 1:
        values[tiles // 2 * TILE :] = mixed(tiles // 2 * TILE, 8)
    values[::97] = 1e20
    packed = encode(values, bits=bits)
    assert packed is not None
    card = open_card("virtual:64MiB")
    stored, out = packed[0].to(card.device), torch.empty_like(values, device=card.device)
    before = card.read().allocated
    card.reset_peaks()
    decode(stored, packed[1], out)
    peak = card.read().peak_allocated
    assert peak is not None
    assert before is not None
    assert peak - before <= decode_scratch(packed[1], "vcard") <= 64 * 2**20
    assert card.read().allocated == before


@BOTH
def test_a_longer_buffer_serves(bits: int) -> None:
    """A slot of a ring is as long as the largest block; what lies behind is not read."""
    values = mixed(30 * TILE, 9)
    packed = encode(values, bits=bits)
    assert packed is not None
    slot = torch.full((packed[1].bytes + 1000,), 0xEE, dtype=torch.uint8)
    slot[: packed[1].bytes] = packed[0]
    out = torch.empty_like(values)
    decode(slot, packed[1], out)
    assert same(out, values)


def test_what_does_not_belong_together_is_refused() -> None:
    """Other lengths, types and shapes, before anything is written."""
    values = gaussian(2 * TILE, torch.Generator().manual_seed(10))
    packed = encode(values)
    assert packed is not None
    stored, recipe = packed
    out = torch.empty_like(values)
    with pytest.raises(ValueError, match="packed bytes are"):
        decode(stored[:-1], recipe, out)
    with pytest.raises(ValueError, match="packed bytes are"):
        decode(stored.view(torch.int8), recipe, out)
    with pytest.raises(ValueError, match="unpack to 16384 flat bfloat16"):
        decode(stored, recipe, out[1:])
    with pytest.raises(ValueError, match="unpack to 16384 flat bfloat16"):
        decode(stored, recipe, out.to(torch.float16))
    with pytest.raises(ValueError, match="cannot be unpacked to meta"):
        decode(stored, recipe, out.to("meta"))


def test_only_flat_bf16_is_packed() -> None:
    """Everything else is the caller's business; unknown formats are named."""
    values = gaussian(2 * TILE, torch.Generator().manual_seed(11))
    for wrong in (values.float(), values.view(2, TILE), values[::2]):
        with pytest.raises(ValueError, match="only flat, contiguous bfloat16"):
            encode(wrong)
    with pytest.raises(ValueError, match="10 bits a value are unknown"):
        encode(values, bits=10)
