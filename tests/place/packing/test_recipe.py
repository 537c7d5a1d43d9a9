"""A recipe is one line of text, and one that does not add up is refused."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.errors import InputError
from tightfit.place.packing.recipe import ALIGNMENT, TILE, Recipe


def signed(text: str) -> str:
    """With the sum that belongs to it, so that the figures alone are wrong."""
    body = text.rpartition(" crc=")[0]
    return f"{body} crc={zlib.crc32(body.encode()):08x}"


@given(
    values=st.integers(1, 2**40),
    bits=st.sampled_from([11, 12]),
    raw=st.integers(0, 3),
    escapes=st.integers(0, TILE),
    tail_raw=st.booleans(),
)
def test_recipes_come_back_from_text(
    values: int, bits: int, raw: int, escapes: int, tail_raw: bool
) -> None:
    """Of any size; sections do not overlap, and each begins at a multiple of 256."""
    tiles = -(-values // TILE)
    raw = min(raw, tiles - 1)
    recipe = Recipe.of(
        values,
        bits=bits,
        packed=tiles - raw,
        escapes=escapes,
        ordered=raw > 0,
        tail_raw=tail_raw and raw > 0 and values % TILE > 0,
    )
    assert Recipe.from_text(recipe.to_text()) == recipe
    assert len(recipe.to_text()) < 256
    offsets = dataclasses.astuple(recipe.sections)
    assert list(offsets) == sorted(offsets)
    assert not any(offset % ALIGNMENT for offset in offsets)
    assert offsets[-1] == recipe.bytes


GOOD = Recipe.of(10 * TILE + 5, bits=12, packed=9, escapes=7, ordered=True, tail_raw=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"bits": 10},
        {"bytes": GOOD.bytes - 1},
        {"bytes": GOOD.bytes + 256},
        {"packed": 0},
        {"packed": 8},
        {"packed": 11},
        {"packed": 12},
        {"values": 10 * TILE},
        {"values": 20 * TILE + 5},
        {"values": 0},
        {"escapes": 10 * TILE},
        {"ordered": False},
        {"ordered": False, "tail_raw": False},
        {"tail_raw": False},
    ],
    ids=str,
)
def test_figures_that_do_not_add_up_are_refused(changes: dict[str, Any]) -> None:
    """Each changed alone, even under a right sum."""
    wrong = dataclasses.replace(GOOD, **changes).to_text()
    with pytest.raises(InputError, match="does not add up"):
        Recipe.from_text(wrong)


@given(st.integers(0, len(GOOD.to_text()) - 1), st.characters(codec="ascii"))
def test_any_changed_letter_is_noticed(place: int, letter: str) -> None:
    """The text carries a sum of itself."""
    text = GOOD.to_text()
    changed = text[:place] + letter + text[place + 1 :]
    if changed != text:
        with pytest.raises(InputError):
            Recipe.from_text(changed)


def test_a_later_version_is_named() -> None:
    """A file of a newer program says so instead of giving wrong weights."""
    later = signed(GOOD.to_text().replace("version=1", "version=7"))
    with pytest.raises(InputError, match=r"version 7 .* reads version 1"):
        Recipe.from_text(later)


@pytest.mark.parametrize("text", ["", "hello", "tightfit-packed", GOOD.to_text() + " more", "\x00"])
def test_nonsense_is_refused(text: str) -> None:
    """No recipe at all."""
    with pytest.raises(InputError, match="Not a recipe"):
        Recipe.from_text(text)
