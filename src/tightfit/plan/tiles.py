"""How an axis is cut into tiles, and how the tiles are weighed where they overlap.

Everything is counted in units along one axis, for a VAE latent units; a `Scale` turns them into
positions (pixels, frames, audio samples). Tiles of one axis are all equally long and spread
evenly, so there is never a sliver at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Span:
    """The half-open interval [start, stop)."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def slice(self) -> slice:
        """For indexing."""
        return slice(self.start, self.stop)


class Scale(NamedTuple):
    """Units [start, stop) stand for positions [ratio × start, ratio × stop + extra).

    `extra` is 0 where every unit stands for `ratio` positions; ``1 - ratio`` where the first one
    of a piece stands for one alone; below 0, also, for networks that pad nothing, whose results
    are smaller than their sources.
    """

    ratio: int
    extra: int = 0

    def of(self, span: Span) -> Span:
        """The positions that a piece of these units has."""
        return Span(self.ratio * span.start, self.ratio * span.stop + self.extra)

    def length(self, units: int) -> int:
        """Positions of a piece of so many units."""
        return self.ratio * units + self.extra


@dataclass(frozen=True)
class Axis:
    """One axis of a latent.

    Attributes:
        length: latent units.
        ratio: samples per latent unit.
        lead: the first latent unit stands for one sample alone, as causal video VAEs have it.
    """

    length: int
    ratio: int
    lead: bool = False

    @property
    def scale(self) -> Scale:
        """From latent units to samples.

        With `lead`, a tile that begins at unit k > 0 is treated by the network as a beginning:
        its first unit gives one sample, the last of the group that unit stands for.
        """
        return Scale(self.ratio, 1 - self.ratio if self.lead else 0)

    @property
    def samples(self) -> int:
        """Samples along the whole axis."""
        return self.scale.length(self.length)

    def covered(self, span: Span) -> Span:
        """The samples that latent units [start, stop) stand for, as a tile of their own."""
        return self.scale.of(span)


@dataclass(frozen=True)
class Track:
    """How one axis of a source leads to that axis of a result.

    Attributes:
        length: units of the whole.
        read: from units to positions of the source.
        write: from units to positions of the result.
    """

    length: int
    read: Scale
    write: Scale


class Edge(NamedTuple):
    """What a cut does to a tile, in positions of the result.

    Attributes:
        head: positions at the beginning of a tile that a cut there spoils.
        tail: likewise at its end.
        bounded: beyond them a tile is the whole, up to rounding. Else something reaches across
            the whole axis (a norm's statistics, attention), and these are the positions that a
            cut spoils visibly more than that does.
    """

    head: int
    tail: int
    bounded: bool = True

    def overlap(self, write: Scale) -> int:
        """Units in common that leave every position to a tile that has it unspoilt."""
        return max(0, -(-(self.head + self.tail - write.extra) // write.ratio))


def cut(length: int, tile: int, overlap: int) -> tuple[Span, ...]:
    """Cover [0, length) with spans of `tile` units that overlap by at least `overlap`.

    One span where the axis is not longer than the tile. Raises `ValueError` unless
    0 <= overlap < tile.
    """
    if not 0 <= overlap < tile:
        raise ValueError(f"overlap {overlap} must be at least 0 and below the tile, {tile}")
    if tile >= length:
        return (Span(0, length),)
    count = -(-(length - overlap) // (tile - overlap))
    starts = (round(index * (length - tile) / (count - 1)) for index in range(count))
    return tuple(Span(start, start + tile) for start in starts)


def blend_weights(
    spans: Sequence[Span], length: int, *, edge: Edge | None = None, blend: bool = True
) -> list[list[float]]:
    """For each span, the weight of each of its units; over all spans they add up to 1.

    Where two spans overlap, what the cut of either spoils (`edge`; where that is not known, a
    quarter of the overlap at each end) has weight 0, and a linear ramp joins them in between. An
    overlap that is shorter than both keeps a ramp of at least one unit. Without `blend` there is
    no ramp: the later span takes over where its head ends.
    """
    raw = [[1.0] * len(span) for span in spans]
    for index in range(1, len(spans)):
        overlap = spans[index - 1].stop - spans[index].start
        rise = _rise(overlap, edge, blend=blend)
        before, after = raw[index - 1], raw[index]
        for at, weight in enumerate(rise[: len(after)]):
            after[at] = min(after[at], weight)
        for at, weight in enumerate(reversed(rise[-len(before) :]), start=1):
            before[-at] = min(before[-at], 1.0 - weight)
    totals = [0.0] * length
    for span, weights in zip(spans, raw, strict=True):
        for at, weight in enumerate(weights, start=span.start):
            totals[at] += weight
    return [
        [weight / totals[at] for at, weight in enumerate(weights, start=span.start)]
        for span, weights in zip(spans, raw, strict=True)
    ]


def _rise(overlap: int, edge: Edge | None, *, blend: bool) -> list[float]:
    """Rising weights over an overlap: zeros, a line, ones."""
    head, tail = (overlap // 4, overlap // 4) if edge is None else (edge.head, edge.tail)
    if not blend:
        head = min(head, overlap)
        return [0.0] * head + [1.0] * (overlap - head)
    if head + tail > overlap:
        left = max(0, overlap - 1)
        head, tail = (left * part // (head + tail) for part in (head, tail))
    rise = overlap - head - tail
    line = [(at + 0.5) / rise for at in range(rise)]
    return [0.0] * head + line + [1.0] * tail
