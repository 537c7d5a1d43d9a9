"""Encoding: from bf16 values to planes, codes and escapes, with PyTorch's own operators."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from tightfit.place.packing.assembling import Found, assembled
from tightfit.place.packing.recipe import (
    TILE,
    WINDOW,
    Recipe,
    code_bytes,
    escape_bytes,
    tile_bytes,
)
from tightfit.place.packing.windows import EVERY, choose, spread_sum

_PIECE = {"cuda": 2048}
"""Tiles that are encoded at once, by device; few elsewhere, which stay in a CPU's cache."""
_FEW = 128
_ROOM = {12: 64, 11: 16}
"""Of so many values one may be an escape before the result has to be copied once more."""
_ROWS = 8
_EACH_BYTE = 0x0101010101010101


def encode(values: torch.Tensor, *, bits: int = 12) -> tuple[torch.Tensor, Recipe] | None:
    """Packed bytes of `values` on their device, with the recipe; None where nothing would shrink.

    Args:
        values: flat, contiguous bf16.
        bits: that a value takes, 12 or 11, and escapes besides.

    Returns:
        Flat uint8 of `recipe.bytes` (of a storage that may be a little larger), the same bytes on
        every device.
    """
    if values.dtype != torch.bfloat16 or values.ndim != 1 or not values.is_contiguous():
        raise ValueError(
            f"only flat, contiguous bfloat16 is packed, not {tuple(values.shape)} {values.dtype}"
        )
    if bits not in WINDOW:
        raise ValueError(f"{bits} bits a value are unknown; known are 11 and 12")
    if values.numel() * 2 <= tile_bytes(bits):
        return None
    with torch.no_grad():
        return _encoded(values.detach().view(torch.int16), bits)


def _encoded(words: torch.Tensor, bits: int) -> tuple[torch.Tensor, Recipe] | None:
    count, device = words.numel(), words.device
    tiles = -(-count // TILE)
    room = Recipe.of(
        count, bits=bits, packed=tiles, escapes=count // _ROOM[bits], ordered=False, tail_raw=False
    )
    made = torch.empty(room.bytes, dtype=torch.uint8, device=device)
    signs = made[: tiles * TILE].view(tiles, TILE)
    width = code_bytes(bits)
    codes = made[room.sections.codes :][: tiles * width].view(tiles, width)
    found = Found()
    encoder = _Encoder(bits, device, min(tiles, _PIECE.get(device.type, _FEW)))
    for first, last in _pieces(count // TILE, encoder.size):
        piece = words[first * TILE : last * TILE].view(-1, TILE)
        encoder.encode(piece, TILE, signs[first:last], codes[first:last], found)
    rest = count % TILE
    if rest:
        tail = words[count - rest :]
        piece = tail.repeat(-(-TILE // rest))[:TILE].view(1, TILE)
        encoder.encode(piece, rest, signs[-1:], codes[-1:], found)
    return assembled(words, bits, made=made, planes=(signs, codes), found=found)


def _pieces(count: int, size: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, size):
        yield first, min(first + size, count)


class _Encoder:
    """Encodes pieces of tiles, in memory that it takes once."""

    def __init__(self, bits: int, device: torch.device, size: int) -> None:
        self.bits, self.size = bits, size
        self._words = torch.empty(size, TILE, dtype=torch.int16, device=device)
        self._bytes = torch.empty(4, size, TILE, dtype=torch.uint8, device=device)

    def encode(
        self,
        words: torch.Tensor,
        valid: int,
        signs: torch.Tensor,
        codes: torch.Tensor,
        found: Found,
    ) -> None:
        """Tiles `words` [n, TILE], of whose last one only `valid` values count."""
        count = words.shape[0]
        wide = self._words[:count]
        exponents, code, escaped, other = self._bytes[:, :count].unbind()
        _shifted(words, 7, out=wide)
        exponents.copy_(wide)
        bases, missed = choose(exponents, self.bits)
        counts = self._code(exponents, bases, valid, code, escaped, other)
        doubtful = counts > (missed + 3 * missed.sqrt()) * EVERY + 64
        if bool(doubtful.any()):
            which = doubtful.nonzero().view(-1)
            bases[which] = choose(exponents[which], self.bits, every=1)[0]
            counts = self._code(exponents, bases, valid, code, escaped, other)
        each = escape_bytes(self.bits)
        raw = counts >= (2 * TILE - tile_bytes(self.bits)) // each
        if valid < TILE:
            raw[-1] = counts[-1] >= (2 * valid - tile_bytes(self.bits)) // each
        if bool(raw.any()):
            escaped *= ~raw[:, None]
            counts[raw] = -1
        found.bases.append(bases)
        found.counts.append(counts)
        self._pack(code, codes)
        index = self._escapes(escaped, codes, counts)
        found.exponents.append(exponents.view(-1)[index])
        if self.bits == 12:
            found.positions.append((index % TILE).to(torch.int16))
        self._sign(words, wide, signs, other)
        if valid < TILE:
            signs[-1, valid:] = 0

    def _code(
        self,
        exponents: torch.Tensor,
        bases: torch.Tensor,
        valid: int,
        code: torch.Tensor,
        escaped: torch.Tensor,
        other: torch.Tensor,
    ) -> torch.Tensor:
        """Fill `code` and `escaped`; gives int64 [n], escapes of each tile."""
        window = WINDOW[self.bits]
        torch.sub(exponents, bases[:, None], out=code)
        torch.ge(code, window, out=escaped)
        if self.bits == 12:
            torch.ne(exponents, 0, out=other)
            escaped &= other
        code.clamp_(max=window)
        if valid < TILE:
            code[-1, valid:] = 0
            escaped[-1, valid:] = 0
        return spread_sum(escaped)

    def _pack(self, code: torch.Tensor, codes: torch.Tensor) -> None:
        count = code.shape[0]
        eights = code.view(torch.int64)
        if self.bits == 12:
            half = eights.shape[1] // 2
            target = codes.view(torch.int64)
            torch.bitwise_left_shift(eights[:, half:], 4, out=target)
            target |= eights[:, :half]
            return
        rows = eights.view(count, _ROWS, -1)
        target = codes.view(torch.int64).view(count, 3, -1)
        factors = torch.tensor([1 << row for row in range(_ROWS)], device=code.device)
        for bit in range(3):
            ones = (rows >> bit if bit else rows) & _EACH_BYTE
            ones *= factors[:, None]
            torch.sum(ones, dim=1, out=target[:, bit])

    def _sign(
        self, words: torch.Tensor, wide: torch.Tensor, signs: torch.Tensor, other: torch.Tensor
    ) -> None:
        _shifted(words, 8, out=wide)
        signs.copy_(wide)
        signs &= 0x80
        other.copy_(words)
        other &= 0x7F
        signs |= other

    def _escapes(
        self, escaped: torch.Tensor, codes: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        """int64: where escapes are among the values of this piece, in the order of the format."""
        if self.bits == 12:
            # Lanes of eight bytes, the rows of a tile added: most are zero, and seldom looked into.
            lanes = escaped.view(torch.int64).view(counts.shape[0], _ROWS, -1)
            some = _where(lanes.sum(1).view(-1) != 0)
            width = lanes.shape[2]
            tile, lane = some // width, some % width
            flags = lanes[tile, :, lane].view(torch.uint8)
            at = _where(flags.view(-1))
            which, row, byte = at // (_ROWS * 8), at // 8 % _ROWS, at % 8
            return tile[which] * TILE + row * (width * 8) + lane[which] * 8 + byte
        low, middle, high = codes.view(codes.shape[0], 3, -1).unbind(1)
        columns = low & middle & high
        columns *= (counts > 0)[:, None]
        width = columns.shape[1]
        flat = columns.view(-1)
        some = _where(flat)
        bits = torch.arange(_ROWS, dtype=torch.uint8, device=codes.device)
        at = _where(((flat[some][:, None] >> bits) & 1).view(-1))
        column = some[at // _ROWS]
        return column + (column // width * (_ROWS - 1) + at % _ROWS) * width


def _where(flags: torch.Tensor) -> torch.Tensor:
    """int64: where flat uint8 or bool is not zero; on a CPU by NumPy, several times as fast."""
    if flags.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(flags.numpy() != 0))
    return flags.nonzero()[:, 0]


def _shifted(words: torch.Tensor, by: int, *, out: torch.Tensor) -> None:
    """`words` >> `by`; on a CPU by NumPy, which is twice as fast at it."""
    if words.device.type == "cpu":
        np.right_shift(words.numpy(), by, out=out.numpy())
    else:
        torch.bitwise_right_shift(words, by, out=out)
