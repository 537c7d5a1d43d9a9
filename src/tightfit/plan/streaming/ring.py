"""The ring: which slots streamed weights can pass through, and what each choice costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tightfit.plan.demand import Unit
from tightfit.plan.streaming.pieces import Convert, Level, Piece, most_converted, pieces_of
from tightfit.units import MIB

SLICES = tuple(2**n * MIB for n in range(6, -1, -1))
"""Bytes of a slice of rows, the largest first; below 1 MiB a copy is mostly overhead."""


@dataclass(frozen=True)
class Ring:
    """Fixed buffers on the card, allocated once.

    Attributes:
        level: what one slot holds.
        slot_bytes: of each slot.
        slots: how many; with one, nothing is copied ahead.
    """

    level: Level
    slot_bytes: int
    slots: int

    @property
    def bytes(self) -> int:
        """Of all slots."""
        return self.slot_bytes * self.slots

    @property
    def overlaps(self) -> bool:
        """Whether the next weights are copied while these are computed with.

        Slices of rows are not counted as such: what they are joined in is in use until the
        computation ends, so only two slices of the next weight can be ahead.
        """
        return self.slots > 1 and self.level in ("block", "leaf")


NO_RING = Ring("none", 0, 0)


@dataclass(frozen=True)
class Option:
    """One way to hold a set of weights.

    Attributes:
        ring: with its slots.
        pieces: at the ring's level, in order.
        largest: pieces that need a larger slot than this stay, whatever else does.
        staying: bytes of the pieces that stay because they must.
        free: bytes of the others, as stored.
        moved: bytes of the others, as copied.
        conversion: bytes of the one scratch that converted (or joined) weights are written to.
        everything: no piece stays for want of a slot that is large enough.
    """

    ring: Ring
    pieces: tuple[Piece, ...]
    largest: int
    staying: int
    free: int
    moved: int
    conversion: int
    everything: bool

    @property
    def fixed(self) -> int:
        """What does not depend on what is resident."""
        return self.ring.bytes + self.conversion

    @property
    def least(self) -> int:
        """Bytes that are taken when all that can be streamed is."""
        return self.staying + self.fixed

    @property
    def ratio(self) -> float:
        """Bytes copied for a byte stored."""
        return self.moved / self.free if self.free else 1.0

    def stays(self, piece: Piece) -> bool:
        """Whether `piece` is resident because it must be."""
        return piece.stays or piece.slot > self.largest


def resident_option(units: Sequence[Unit]) -> Option:
    """Everything stays; converted copies still need their scratch."""
    pieces = pieces_of(units, "block", convert="card")
    weight = sum(unit.bytes for unit in units)
    return Option(NO_RING, pieces, -1, weight, 0, 0, most_converted(units, pieces), False)


def streamed_options(
    units: Sequence[Unit], *, slots: int = 2, convert: Convert = "card", slices: bool = True
) -> Iterator[Option]:
    """Every choice of slots that streams something: blocks, leaves, then `slices` of rows.

    A slot smaller than some pieces keeps those resident; `slots` slots and fewer are offered.
    """
    levels: list[Level] = ["block"]
    if any(unit.leaf < unit.bytes for unit in units):
        levels.append("leaf")
    pieces: tuple[Piece, ...] = ()
    for level in levels:
        pieces = pieces_of(units, level, convert=convert)
        scratch = most_converted(units, pieces)
        yield from slotted(pieces, level, slots=slots, scratch=scratch, convert=convert)
    if slices and convert == "card" and any(unit.scratch for unit in units):
        yield from _sliced(pieces, most_converted(units, pieces), slots)


def slotted(
    pieces: tuple[Piece, ...],
    level: Level,
    *,
    slots: int = 2,
    scratch: int = 0,
    convert: Convert = "card",
) -> Iterator[Option]:
    """Every choice of slots for these pieces: as large as one of them, `slots` of them or fewer."""
    able = sorted((p.slot, p.bytes, p.moved) for p in pieces if not p.stays)
    staying = sum(piece.bytes for piece in pieces)
    free = moved = 0
    for at, (slot, stored, copied) in enumerate(able):
        staying, free, moved = staying - stored, free + stored, moved + copied
        last = at + 1 == len(able)
        if not slot or (not last and able[at + 1][0] == slot):
            continue
        for count in range(slots, 0, -1):
            # Converted by the host, a weight arrives in the slot; with one slot, that is the
            # scratch of resident ones too.
            shared = convert == "host" and count == 1 and slot >= scratch
            ring, own = Ring(level, slot, count), 0 if shared else scratch
            yield Option(ring, pieces, slot, staying, free, moved, own, last)


def _sliced(pieces: tuple[Piece, ...], scratch: int, slots: int) -> Iterator[Option]:
    """Stored rows pass through small slots and are converted, or joined, in the scratch.

    What is multiplied is always the whole weight, so a scratch of one is needed in any case; where
    nothing is converted, slices would save nothing over one slot.
    """
    able = [piece for piece in pieces if not piece.stays]
    largest = max((piece.slot for piece in able), default=0)
    joined = max((piece.slot for piece in able if not piece.converted), default=0)
    staying = sum(piece.bytes for piece in pieces if piece.stays)
    free = sum(piece.bytes for piece in able)
    for size in SLICES:
        if size * slots < largest:
            ring = Ring("rows", size, slots)
            yield Option(ring, pieces, largest, staying, free, free, max(scratch, joined), True)
