"""The pieces that weights move in: whole units, or the modules in them that own tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tightfit.plan.demand import Unit

Level = Literal["none", "block", "leaf", "rows"]
"""What one slot of the ring holds: no ring at all, a unit, a module that owns tensors, a slice."""
Convert = Literal["card", "host"]
"""Where streamed weights become what is computed with: stored bytes move, or converted ones do."""


@dataclass(frozen=True)
class Piece:
    """What is resident or streamed as one.

    Attributes:
        name: of a unit, or of a part of one.
        bytes: as stored, which is what it takes where it is resident.
        moved: bytes that are copied for one use.
        slot: bytes of the slot it needs.
        converted: see `Unit`.
        time: its part of the compute time of one call; over all pieces these add up to 1.
        stays: it is not streamed, whatever there is room for.
        packed: it is stored in fewer bytes, and unpacked to `converted` for each use.
    """

    name: str
    bytes: int
    moved: int
    slot: int
    converted: int
    time: float
    stays: bool
    packed: bool = False


def pieces_of(units: Sequence[Unit], level: Level, *, convert: Convert) -> tuple[Piece, ...]:
    """The pieces of `units` in order, at the level ``block`` or ``leaf``.

    A unit whose parts are not known stays or goes as one at either level; at ``leaf`` its largest
    part is what needs a slot.
    """
    times = _times(units)
    apart = level == "leaf"
    found = []
    for unit, time in zip(units, times, strict=True):
        if not (apart and unit.parts):
            found.append(_piece(unit, convert, time, unit.pinned, apart=apart))
            continue
        for part, share in zip(unit.parts, _times(unit.parts), strict=True):
            stays = any(each.stays is not None or each.kept for each in (unit, part))
            found.append(_piece(part, convert, time * share, stays, apart=True))
    return tuple(found)


def most_converted(units: Iterable[Unit], pieces: Iterable[Piece]) -> int:
    """The bytes of the one scratch that every converted weight of `units` is written to.

    What is packed is unpacked `pieces` by pieces.
    """
    converted = max((unit.scratch for unit in units), default=0)
    unpacked = max((piece.converted for piece in pieces if piece.packed), default=0)
    return max(converted, unpacked)


def _times(units: Sequence[Unit]) -> list[float]:
    """Of compute time, adding up to 1: by share where all are told, else by bytes."""
    shares = [unit.share for unit in units if unit.share is not None]
    if len(shares) < len(units) or not sum(shares):
        shares = [float(unit.bytes) for unit in units]
    whole = sum(shares) or 1.0
    return [share / whole for share in shares]


def _piece(unit: Unit, convert: Convert, time: float, stays: bool, *, apart: bool) -> Piece:
    moved = _once_converted(unit) if convert == "host" else unit.bytes
    slot = moved
    if apart and unit.leaf < unit.bytes:
        slot = max(unit.leaf, unit.scratch) if convert == "host" else unit.leaf
    packed = bool(unit.unpacked)
    converted = max(unit.scratch, unit.unpacked)
    return Piece(unit.name, unit.bytes, moved, slot, converted, time, stays, packed)


def _once_converted(unit: Unit) -> int:
    """What the whole unit weighs converted; in proportion where its parts are not known."""
    if unit.parts:
        return sum(_once_converted(part) for part in unit.parts)
    if not unit.converted or not unit.leaf:
        return unit.bytes
    return max(unit.bytes, -(-unit.bytes * unit.converted // unit.leaf))
