"""The format, read as `Sections` describes it by a second, slow program that shares no code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.place.packing.weights import HOSTILE, gaussian, mixed, same
from tightfit.place.packing.codec import Recipe, encode


def read(stored: bytes, recipe: Recipe) -> list[int]:
    """The 16 bits of each value."""
    at, tile = recipe.sections, 8192

    def table(offset: int, count: int, kind: str) -> list[int]:
        found: list[int] = np.frombuffer(stored, np.dtype(kind), count, offset).tolist()
        return found

    tiles = -(-recipe.values // tile)
    order = table(at.order, tiles, "<i4") if recipe.ordered else list(range(tiles))
    starts = table(at.starts, recipe.packed + 1, "<i4")
    exponents = table(at.exponents, recipe.escapes, "u1")
    words = [0] * (tiles * tile)
    for number in range(recipe.packed):
        base = stored[at.bases + number]
        made, listed = [], iter(exponents[starts[number] : starts[number + 1]])
        codes = table(at.codes + number * (tile * (recipe.bits - 8) // 8), tile // 2, "u1")
        if recipe.bits == 12:
            for place in range(tile):
                byte = codes[place % 4096]
                code = byte & 15 if place < 4096 else byte >> 4
                made.append(0 if code == 15 else base + code)
            begin = at.positions + 2 * starts[number]
            for place in table(begin, starts[number + 1] - starts[number], "<i2"):
                made[place] = next(listed)
        else:
            made = [0] * tile
            for column in range(1024):
                low, middle, high = (codes[1024 * bit + column] for bit in range(3))
                for row in range(8):
                    code = low >> row & 1 | (middle >> row & 1) << 1 | (high >> row & 1) << 2
                    made[row * 1024 + column] = next(listed) if code == 7 else base + code
        assert next(listed, None) is None
        for place, exponent in enumerate(made):
            sign = stored[at.signs + number * tile + place]
            word = (sign & 128) << 8 | (exponent & 255) << 7 | sign & 127
            words[order[number] * tile + place] = word
    raw = table(at.raw, recipe.raw_values, "<u2")
    for number in range(tiles - recipe.packed):
        part = raw[number * tile : (number + 1) * tile]
        begin = order[recipe.packed + number] * tile
        words[begin : begin + len(part)] = part
    return words[: recipe.values]


@pytest.mark.parametrize("bits", [12, 11])
def test_the_format_is_what_its_description_says(bits: int) -> None:
    """Escapes, raw tiles in between, and a last tile in part, packed and raw."""
    draw = torch.Generator().manual_seed(12)
    hostile = HOSTILE["any bits"](8192, draw)
    for end in (gaussian(8000, draw), hostile[:900]):
        values = torch.cat((gaussian(9000, draw), hostile, hostile, mixed(9000, 13), end))
        packed = encode(values, bits=bits)
        assert packed is not None
        stored, recipe = packed
        assert recipe.escapes
        assert recipe.ordered
        words = torch.tensor(read(stored.numpy().tobytes(), recipe)).to(torch.int16)
        assert same(words.view(torch.bfloat16), values)


@pytest.mark.parametrize("bits", [12, 11])
def test_packing_twice_gives_the_same_bytes(bits: int) -> None:
    """Also what lies between sections, so that files of the same weights are the same."""
    values = torch.cat((gaussian(50_000, torch.Generator().manual_seed(14)), mixed(60_000, 15)))
    first, second = encode(values, bits=bits), encode(values.clone(), bits=bits)
    assert first is not None
    assert second is not None
    assert torch.equal(first[0], second[0])
