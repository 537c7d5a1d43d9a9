"""What must be known beside packed bytes: how many there are, and where each section lies."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from functools import cached_property

from tightfit.errors import InputError

VERSION = 1
TILE = 8192
"""Values that share one window of exponents."""
ALIGNMENT = 256
"""In bytes, of every section."""
MOST_ESCAPES = 2**31 - 1
"""Of one buffer: where each tile's begin is stored in 32 bits."""
WINDOW = {12: 15, 11: 7}
"""Bits a value takes → exponents that have a code of their own."""
_CODE_BYTES = {12: TILE // 2, 11: TILE // 8 * 3}
_ESCAPE_BYTES = {12: 3, 11: 1}
_TEXT = re.compile(
    r"tightfit-packed version=(?P<version>\d{1,9}) bits=(?P<bits>\d{1,3})"
    r" values=(?P<values>\d{1,18}) bytes=(?P<bytes>\d{1,18}) packed=(?P<packed>\d{1,18})"
    r" escapes=(?P<escapes>\d{1,18}) ordered=(?P<ordered>[01]) tail=(?P<tail>packed|raw)"
    r" crc=(?P<crc>[0-9a-f]{8})"
)


@dataclass(frozen=True)
class Sections:
    """Where each section of a packed buffer begins; offsets in bytes, multiples of 256.

    Attributes:
        signs: uint8 [packed, TILE]: the sign in bit 7, the mantissa below it.
        codes: uint8; of 12 bits [packed, TILE / 2], value j in the lower half of byte j and value
            j + TILE / 2 in the upper one; of 11 bits [packed, 3, TILE / 8], bit b of the code of
            value k × TILE / 8 + j in bit k of byte [b, j].
        bases: uint8 [packed]: the exponent that code 0 stands for.
        starts: int32 [packed + 1]: the first escape of each tile, and how many there are.
        positions: int16 [escapes] within the tile; of 12 bits alone.
        exponents: uint8 [escapes]: the true ones.
        order: int32 [tiles]: which tiles the packed ones are, then which the raw ones are;
            only where `Recipe.ordered`.
        raw: bf16 [raw values]: tiles as they were.
        end: the length of the buffer.
    """

    signs: int
    codes: int
    bases: int
    starts: int
    positions: int
    exponents: int
    order: int
    raw: int
    end: int


@dataclass(frozen=True)
class Recipe:
    """How a packed buffer is read; decoding never looks at device memory for it.

    Attributes:
        version: of the format.
        bits: 12 (codes of 4 bits, code 15 is exponent 0, escapes are listed by position) or 11
            (codes of 3 bits, code 7 is an escape, whose exponents follow in order).
        values: bf16 values in all.
        bytes: of the packed buffer.
        packed: tiles that are packed; the other ones are stored as they were.
        escapes: values whose exponent lies outside the window of their tile.
        ordered: raw tiles lie among packed ones, so that a table says which are which.
        tail_raw: the last tile has fewer than `TILE` values, and is raw.
    """

    version: int
    bits: int
    values: int
    bytes: int
    packed: int
    escapes: int
    ordered: bool
    tail_raw: bool

    @classmethod
    def of(
        cls, values: int, *, bits: int, packed: int, escapes: int, ordered: bool, tail_raw: bool
    ) -> Recipe:
        """With the bytes that follow from the rest."""
        recipe = cls(VERSION, bits, values, 0, packed, escapes, ordered, tail_raw)
        return cls(VERSION, bits, values, recipe.sections.end, packed, escapes, ordered, tail_raw)

    @property
    def tiles(self) -> int:
        """Packed and raw, the last one perhaps in part."""
        return -(-self.values // TILE)

    @property
    def raw_values(self) -> int:
        """Values that are stored as they were."""
        missing = self.tiles * TILE - self.values if self.tail_raw else 0
        return (self.tiles - self.packed) * TILE - missing

    @cached_property
    def sections(self) -> Sections:
        """Where everything lies."""
        lengths = (
            self.packed * TILE,
            self.packed * _CODE_BYTES[self.bits],
            self.packed,
            (self.packed + 1) * 4,
            self.escapes * 2 if self.bits == 12 else 0,
            self.escapes,
            self.tiles * 4 if self.ordered else 0,
            self.raw_values * 2,
        )
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + aligned(length))
        return Sections(*offsets)

    def to_text(self) -> str:
        """One short line, for the metadata of a file."""
        text = (
            f"tightfit-packed version={self.version} bits={self.bits} values={self.values}"
            f" bytes={self.bytes} packed={self.packed} escapes={self.escapes}"
            f" ordered={int(self.ordered)} tail={'raw' if self.tail_raw else 'packed'}"
        )
        return f"{text} crc={_sum_of(text)}"

    @classmethod
    def from_text(cls, text: str) -> Recipe:
        """The recipe that `to_text` wrote.

        Raises:
            InputError: it is none, its version is not known here, or its figures do not add up.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InputError(f"Not a recipe of packed weights: {text[:200]!r}.")
        figures = {name: int(match[name]) for name in ("version", "bits", "values", "bytes")}
        if figures["version"] != VERSION:
            raise InputError(
                f"Weights packed in version {figures['version']} of the format; this program"
                f" reads version {VERSION}. Try a newer tightfit."
            )
        if _sum_of(text.rpartition(" crc=")[0]) != match["crc"]:
            raise InputError(
                f"A recipe of packed weights was changed after it was written: {text}."
            )
        recipe = cls(
            **figures,
            packed=int(match["packed"]),
            escapes=int(match["escapes"]),
            ordered=match["ordered"] == "1",
            tail_raw=match["tail"] == "raw",
        )
        recipe._check(text)
        return recipe

    def _check(self, text: str) -> None:
        partial = self.values % TILE != 0
        raw_tiles = self.tiles - self.packed
        wrong = None
        if self.bits not in WINDOW:
            wrong = f"{self.bits} bits a value are unknown; known are 11 and 12"
        elif not 0 < self.packed <= self.tiles:
            wrong = f"{self.packed} of {self.tiles} tiles cannot be packed"
        elif self.tail_raw and not (partial and raw_tiles):
            wrong = "there is no last tile that could be raw"
        elif self.ordered and not raw_tiles:
            wrong = "there are no raw tiles to tell apart"
        elif not self.ordered and raw_tiles and partial and not self.tail_raw:
            wrong = "the last tile is packed behind raw ones, and no table says so"
        elif self.escapes > min(self.packed * TILE, MOST_ESCAPES):
            wrong = f"{self.escapes} escapes are more than {self.packed} tiles can have"
        elif self.bytes != self.sections.end:
            wrong = f"{self.bytes} bytes are said, and {self.sections.end} follow from the rest"
        if wrong is not None:
            raise InputError(f"A recipe of packed weights does not add up: {wrong} ({text}).")


def _sum_of(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def aligned(length: int) -> int:
    """`length` in bytes, up to the next multiple of 256."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def tile_bytes(bits: int) -> int:
    """What a packed tile without escapes takes: signs, codes, base and start."""
    return TILE + _CODE_BYTES[bits] + 1 + 4


def escape_bytes(bits: int) -> int:
    """What one escape takes."""
    return _ESCAPE_BYTES[bits]


def code_bytes(bits: int) -> int:
    """What the codes of one tile take."""
    return _CODE_BYTES[bits]
