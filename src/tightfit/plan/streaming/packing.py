"""How much of the weights should lie on the card as they are, where the others are packed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tightfit.plan.demand import Unit


@dataclass(frozen=True)
class Packable:
    """Weights that can be stored in fewer bytes, and what that costs and gains.

    Attributes:
        bytes: as they are.
        packed: bytes that they are stored in then.
        unpack: bytes, as they are, that come back in a second; None is unknown.
    """

    bytes: int
    packed: int
    unpack: float | None

    @property
    def ratio(self) -> float:
        """Bytes stored for a byte used."""
        return self.packed / self.bytes if self.bytes else 1.0

    def seconds(self, size: int) -> float:
        """That a call takes longer when `size` bytes, as they are, come back for it."""
        return size / self.unpack if self.unpack else 0.0


def kept_as_they_are(
    weights: Packable, *, room: int, compute: float | None, link: float | None
) -> int:
    """Bytes of weights that should be resident unpacked, so that a call takes the least time.

    With x of them, y resident packed and s streamed packed: ``x + r y = room``, ``x + y + s`` is
    all, and ``T = max(C + (y + s) / U, r s / W)``. Every byte of x saves its unpacking and costs
    ``1 - r`` bytes more on the link, so x is where both are equal.

    Args:
        weights: all of them.
        room: for what is resident.
        compute: C, seconds of a call with everything there; None is unknown.
        link: W, bytes a second; None is unknown.

    Returns:
        0 to `room`; 0 where a rate is not known: then the fewest bytes are copied.
    """
    if compute is None or link is None or weights.unpack is None:
        return 0
    ratio = weights.ratio
    moved = max(0.0, ratio * weights.bytes - room)
    ahead = compute + weights.bytes / weights.unpack - moved / link
    each = 1 / weights.unpack + (1 - ratio) / link
    return int(min(max(0.0, ahead / each), max(0, room)))


def packed(unit: Unit, sizes: dict[str, int], kept: frozenset[str]) -> Unit:
    """`unit` with what is in `sizes` stored in so many bytes, but for what is `kept` as it is.

    By the names of its parts, or its own where it has none. A part that is kept stays on the card.
    """
    if not unit.parts:
        return _packed(unit, sizes, kept)
    if unit.name in kept:
        parts = tuple(replace(part, kept=True) for part in unit.parts)
        return replace(unit, parts=parts, kept=True)
    parts = tuple(_packed(part, sizes, kept) for part in unit.parts)
    if parts == unit.parts:
        return unit
    stored = sum(part.bytes for part in parts)
    whole = all(part.unpacked or part.name not in sizes for part in parts)
    return replace(
        unit,
        bytes=stored,
        parts=parts,
        unpacked=unit.bytes if whole and stored < unit.bytes else 0,
    )


def _packed(part: Unit, sizes: dict[str, int], kept: frozenset[str]) -> Unit:
    if part.name in kept:
        return replace(part, kept=True)
    size = sizes.get(part.name)
    if size is None or size >= part.bytes or part.stays is not None:
        return part
    return replace(part, bytes=size, unpacked=part.bytes)
