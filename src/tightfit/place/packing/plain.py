"""Decoding with PyTorch's own operators, on any device, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tightfit.place.packing.recipe import TILE, Recipe, Sections, code_bytes

_PIECE = {"cuda": 256}
"""Tiles that are decoded at once, by device; few elsewhere, which stay in a CPU's cache."""
_FEW = 32
_SIGN_AND_MANTISSA = -0x8000 | 0x7F
_SMALL = 64 * 1024
"""Bytes for what does not grow with the piece."""
_ROWS = 8
"""Of a tile, where bits of 11-bit codes are grouped."""


def decode(stored: torch.Tensor, recipe: Recipe, out: torch.Tensor) -> None:
    """As `codec.decode`, whose checks were made."""
    at, words = recipe.sections, out.view(torch.int16)
    order = _table(stored, at.order, recipe.tiles) if recipe.ordered else None
    for first, last in _pieces(recipe.packed, _piece(stored.device.type)):
        made = _tiles(stored, recipe, at, first, last)
        _put(words, made, recipe, order, first)
        del made
    if recipe.bits == 12:
        _apply_escapes(words, stored, recipe, at, order)
    _put_raw(words, stored, recipe, at, order)


def scratch(recipe: Recipe, device_type: str) -> int:
    """Bytes taken meanwhile, at most; measured 7 a value of one piece with 12 bits, 12 with 11."""
    count = min(recipe.packed, _piece(device_type)) * TILE
    return count * (8 if recipe.bits == 12 else 14) + _SMALL


def _piece(device_type: str) -> int:
    return _PIECE.get(device_type, _FEW)


def _pieces(count: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, size):
        yield first, min(first + size, count)


def _table(stored: torch.Tensor, offset: int, count: int) -> torch.Tensor:
    return stored[offset : offset + 4 * count].view(torch.int32)


def _tiles(
    stored: torch.Tensor, recipe: Recipe, at: Sections, first: int, last: int
) -> torch.Tensor:
    """int16 [last - first, TILE]: packed tiles [first, last), 12-bit escapes not yet right."""
    count, width = last - first, code_bytes(recipe.bits)
    signs = stored[at.signs + first * TILE : at.signs + last * TILE].view(count, TILE)
    codes = stored[at.codes + first * width : at.codes + last * width].view(count, width)
    bases = stored[at.bases + first : at.bases + last].view(count, 1)
    if recipe.bits == 12:
        exponents = _exponents_of_12(codes, bases)
    else:
        exponents = _exponents_of_11(codes, bases, stored, recipe, at, first, last)
    words = signs.to(torch.int16)
    words |= words << 8
    words &= _SIGN_AND_MANTISSA
    words |= exponents.to(torch.int16) << 7
    return words


def _exponents_of_12(codes: torch.Tensor, bases: torch.Tensor) -> torch.Tensor:
    """uint8 [tiles, TILE]; code 15 is exponent 0."""
    exponents = torch.cat((codes & 15, codes >> 4), dim=1)
    coded = torch.empty_like(exponents)
    torch.lt(exponents, 15, out=coded)
    exponents += bases
    exponents *= coded
    return exponents


def _exponents_of_11(
    codes: torch.Tensor,
    bases: torch.Tensor,
    stored: torch.Tensor,
    recipe: Recipe,
    at: Sections,
    first: int,
    last: int,
) -> torch.Tensor:
    """uint8 [tiles, TILE]; the exponents of code 7 are read in the order of [j, k]."""
    count, columns = last - first, TILE // _ROWS
    low, middle, high = codes.view(count, 3, columns).unbind(1)
    ordered = torch.empty(count, columns, _ROWS, dtype=torch.uint8, device=codes.device)
    for row in range(_ROWS):
        code = (low >> row) & 1
        code += ((middle >> row) & 1) << 1
        code += ((high >> row) & 1) << 2
        ordered[:, :, row] = code
    escaped = ordered == 7
    ordered += bases[:, :, None]
    if recipe.escapes:
        true = stored[at.exponents : at.exponents + recipe.escapes]
        starts = _table(stored, at.starts, recipe.packed + 1)
        if codes.device.type == "cpu":
            true = true[int(starts[first]) : int(starts[last])]
        else:
            index = torch.arange(count * TILE, device=codes.device)
            index += starts[first]
            true = true[index.clamp_(max=recipe.escapes - 1)]
            del index
        ordered.masked_scatter_(escaped, true)
    return ordered.transpose(1, 2).reshape(count, TILE)


def _put(
    words: torch.Tensor,
    made: torch.Tensor,
    recipe: Recipe,
    order: torch.Tensor | None,
    first: int,
) -> None:
    """Tiles `made`, which are [first, …) of the packed ones, to where they belong."""
    if order is None:
        begin = first * TILE
        count = min(made.numel(), recipe.values - begin)
        words[begin : begin + count] = made.view(-1)[:count]
        return
    _spread(
        words, made, recipe, order[first : first + made.shape[0]], _has_tail(recipe, first, made)
    )


def _has_tail(recipe: Recipe, first: int, made: torch.Tensor) -> bool:
    partial = recipe.values % TILE != 0
    return partial and not recipe.tail_raw and first + made.shape[0] == recipe.packed


def _spread(
    words: torch.Tensor, made: torch.Tensor, recipe: Recipe, which: torch.Tensor, tail: bool
) -> None:
    """Tiles `made` to the places `which`; `tail`: the last of them is the last one of all."""
    whole = recipe.values // TILE * TILE
    if tail:
        words[whole:] = made[-1, : recipe.values - whole]
        made, which = made[:-1], which[:-1]
    words[:whole].view(-1, TILE).index_copy_(0, which.long(), made)


def _apply_escapes(
    words: torch.Tensor,
    stored: torch.Tensor,
    recipe: Recipe,
    at: Sections,
    order: torch.Tensor | None,
) -> None:
    starts = _table(stored, at.starts, recipe.packed + 1)
    places = stored[at.positions : at.positions + 2 * recipe.escapes].view(torch.int16)
    true = stored[at.exponents : at.exponents + recipe.escapes]
    size = min(recipe.packed, _piece(stored.device.type)) * TILE // 4
    for first, last in _pieces(recipe.escapes, size):
        number = torch.arange(first, last, dtype=torch.int32, device=stored.device)
        index = torch.searchsorted(starts, number, right=True)
        index -= 1
        if order is not None:
            index = order[index].long()
        index *= TILE
        index += places[first:last]
        found = words[index]
        found &= _SIGN_AND_MANTISSA
        found |= true[first:last].to(torch.int16) << 7
        words[index] = found


def _put_raw(
    words: torch.Tensor,
    stored: torch.Tensor,
    recipe: Recipe,
    at: Sections,
    order: torch.Tensor | None,
) -> None:
    if not recipe.raw_values:
        return
    raw = stored[at.raw : at.raw + 2 * recipe.raw_values].view(torch.int16)
    if order is None:
        words[recipe.values - recipe.raw_values :] = raw
        return
    if recipe.tail_raw:
        whole = recipe.values // TILE * TILE
        words[whole:] = raw[recipe.raw_values - (recipe.values - whole) :]
    full = recipe.raw_values // TILE
    for first, last in _pieces(full, _piece(stored.device.type)):
        which = order[recipe.packed + first : recipe.packed + last]
        _spread(words, raw[first * TILE : last * TILE].view(-1, TILE), recipe, which, False)
