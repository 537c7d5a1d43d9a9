"""Decoding by one Triton kernel a buffer; imported only where Triton is.

A program decodes a tile, or a share of one. All offsets are 64-bit. What is read from the tables
is kept within the buffers, so that damaged bytes give wrong values and never touch other memory.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, operator"

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

from tightfit.place.packing.recipe import TILE, Recipe

SHARES, WARPS = {12: 4, 11: 1}, {12: 4, 11: 4}
"""By bits: programs a tile, and warps a program."""
_ESCAPES_AT_ONCE = 128


def decode(
    stored: torch.Tensor,
    recipe: Recipe,
    out: torch.Tensor,
    *,
    shares: int | None = None,
    warps: int | None = None,
) -> None:
    """As `codec.decode`, whose checks were made; nothing is allocated.

    Args:
        stored, recipe, out: as there.
        shares: programs a tile, None for what measured best; of 11 bits always 1.
        warps: of a program, likewise.
    """
    launching(stored, recipe, out, shares=shares, warps=warps)()


def launching(
    stored: torch.Tensor,
    recipe: Recipe,
    out: torch.Tensor,
    *,
    shares: int | None = None,
    warps: int | None = None,
) -> Callable[[], None]:
    """What does as `decode` does, each time it is called."""
    at = recipe.sections
    shares = shares or SHARES[recipe.bits]
    common = {"ORDERED": recipe.ordered, "TILE": TILE, "num_warps": warps or WARPS[recipe.bits]}
    codes = (at.codes, at.bases, at.starts)
    rest = (at.exponents, at.order, at.raw, recipe.packed, recipe.escapes, recipe.values)
    if recipe.bits == 12:
        common |= {"SHARES": shares, "STEP": _ESCAPES_AT_ONCE}
        run = _unpack_12[(recipe.tiles * shares,)]
        return partial(run, stored, out, *codes, at.positions, *rest, **common)
    return partial(_unpack_11[(recipe.tiles,)], stored, out, *codes, *rest, **common)


@triton.jit
def _which(stored, order_at, place, values, TILE: tl.constexpr, ORDERED: tl.constexpr):
    """The tile that the packed or raw tile `place` is."""
    if ORDERED:
        order = (stored + order_at).to(tl.pointer_type(tl.int32))
        last = (values - 1).to(tl.int64) // TILE
        return tl.minimum(tl.maximum(tl.load(order + place).to(tl.int64), 0), last)
    return place


@triton.jit
def _word(sign, exponent):
    """int16 bits of a bf16 value, of its byte of sign and mantissa and its exponent."""
    return (((sign & 0x80) << 8) | (exponent << 7) | (sign & 0x7F)).to(tl.int16)


@triton.jit
def _copy_raw(
    stored, words, raw_at, number, tile, share, values, SHARES: tl.constexpr, TILE: tl.constexpr
):
    """A share of raw tile `number`; in steps, since what is unrolled here takes registers above."""
    STEP: tl.constexpr = 1024
    raw = (stored + raw_at).to(tl.pointer_type(tl.int16))
    begin = share * (TILE // SHARES)
    for offset in range(0, TILE // SHARES, STEP):
        index = begin + offset + tl.arange(0, STEP)
        source = raw + number * TILE + index
        target = words + tile * TILE + index
        if (tile + 1) * TILE <= values:
            tl.store(target, tl.load(source))
        else:
            real = tile * TILE + index < values
            tl.store(target, tl.load(source, mask=real), mask=real)


@triton.jit
def _unpack_12(
    stored,
    out,
    codes_at,
    bases_at,
    starts_at,
    positions_at,
    exponents_at,
    order_at,
    raw_at,
    packed,
    escapes,
    values,
    SHARES: tl.constexpr,
    STEP: tl.constexpr,
    ORDERED: tl.constexpr,
    TILE: tl.constexpr,
):
    HALF: tl.constexpr = TILE // 2
    WIDTH: tl.constexpr = HALF // SHARES
    place = (tl.program_id(0) // SHARES).to(tl.int64)
    share = tl.program_id(0) % SHARES
    tile = _which(stored, order_at, place, values, TILE, ORDERED)
    words = out.to(tl.pointer_type(tl.int16))
    if place < packed:
        column = share * WIDTH + tl.arange(0, WIDTH)
        signs = stored + place * TILE
        base = tl.load(stored + bases_at + place).to(tl.int32)
        starts = (stored + starts_at).to(tl.pointer_type(tl.int32)) + place
        first = tl.maximum(tl.load(starts), 0)
        last = tl.minimum(tl.load(starts + 1), escapes)
        code = tl.load(stored + codes_at + place * HALF + column, eviction_policy="evict_first").to(
            tl.int32
        )
        low = tl.load(signs + column, eviction_policy="evict_first").to(tl.int32)
        high = tl.load(signs + HALF + column, eviction_policy="evict_first").to(tl.int32)
        code_low = code & 15
        code_high = code >> 4
        low = _word(low, tl.where(code_low == 15, 0, base + code_low))
        high = _word(high, tl.where(code_high == 15, 0, base + code_high))
        target = words + tile * TILE
        left = values - tile * TILE
        if left >= TILE:
            tl.store(target + column, low)
            tl.store(target + HALF + column, high)
        else:
            tl.store(target + column, low, mask=column < left)
            tl.store(target + HALF + column, high, mask=HALF + column < left)
        if first < last:
            # The barrier orders these stores behind those of other threads to the same places.
            tl.debug_barrier()
            positions = (stored + positions_at).to(tl.pointer_type(tl.int16))
            index = first.to(tl.int64) + tl.arange(0, STEP)
            while first < last:
                real = index < last
                position = tl.load(positions + index, mask=real, other=0).to(tl.int32)
                position &= TILE - 1
                real = real & (position < left)
                real = real & ((position % HALF) // WIDTH == share)
                exponent = tl.load(stored + exponents_at + index, mask=real, other=0).to(tl.int32)
                sign = tl.load(signs + position, mask=real, other=0).to(tl.int32)
                tl.store(target + position, _word(sign, exponent), mask=real)
                index += STEP
                first += STEP
    else:
        _copy_raw(stored, words, raw_at, place - packed, tile, share, values, SHARES, TILE)


@triton.jit
def _unpack_11(
    stored,
    out,
    codes_at,
    bases_at,
    starts_at,
    exponents_at,
    order_at,
    raw_at,
    packed,
    escapes,
    values,
    ORDERED: tl.constexpr,
    TILE: tl.constexpr,
):
    ROWS: tl.constexpr = 8
    WIDTH: tl.constexpr = TILE // ROWS
    place = tl.program_id(0).to(tl.int64)
    tile = _which(stored, order_at, place, values, TILE, ORDERED)
    words = out.to(tl.pointer_type(tl.int16))
    if place < packed:
        column = tl.arange(0, WIDTH)
        signs = stored + place * TILE
        codes = stored + codes_at + place * (3 * WIDTH)
        base = tl.load(stored + bases_at + place).to(tl.int32)
        first = tl.load((stored + starts_at).to(tl.pointer_type(tl.int32)) + place)
        true = stored + exponents_at
        low = tl.load(codes + column, eviction_policy="evict_first").to(tl.int32)
        middle = tl.load(codes + WIDTH + column, eviction_policy="evict_first").to(tl.int32)
        high = tl.load(codes + 2 * WIDTH + column, eviction_policy="evict_first").to(tl.int32)
        # Bits set in a byte, by halves, quarters and eighths of it.
        escaped = low & middle & high
        count = escaped - ((escaped >> 1) & 0x55)
        count = (count & 0x33) + ((count >> 2) & 0x33)
        count = (count + (count >> 4)) & 0x0F
        rank = tl.maximum(first, 0) + tl.cumsum(count, 0) - count
        target = words + tile * TILE
        left = values - tile * TILE
        for row in tl.static_range(ROWS):
            code = (low >> row) & 1
            code |= ((middle >> row) & 1) << 1
            code |= ((high >> row) & 1) << 2
            here = code == 7
            listed = tl.load(true + rank, mask=here & (rank < escapes), other=0).to(tl.int32)
            rank += here.to(tl.int32)
            index = row * WIDTH + column
            sign = tl.load(signs + index, eviction_policy="evict_first").to(tl.int32)
            word = _word(sign, tl.where(here, listed, base + code))
            if left >= TILE:
                tl.store(target + index, word)
            else:
                tl.store(target + index, word, mask=index < left)
    else:
        _copy_raw(stored, words, raw_at, place - packed, tile, 0, values, 1, TILE)
