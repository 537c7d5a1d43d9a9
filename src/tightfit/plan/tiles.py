"""How an axis is cut into tiles, and how the tiles are weighed where they overlap.

Everything is counted in latent units along one axis; `Axis` turns latent units into samples
(pixels, frames, audio samples). Tiles of one axis are all equally long and spread evenly, so there
is never a sliver at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    def samples(self) -> int:
        """Samples along the whole axis."""
        return len(self.covered(Span(0, self.length)))

    def covered(self, span: Span) -> Span:
        """The samples that latent units [start, stop) stand for.

        With `lead`, a tile that begins at unit k > 0 is treated by the network as a beginning:
        its first unit gives one sample, the last of the group that unit stands for.
        """
        if self.lead:
            return Span(self.ratio * span.start, self.ratio * (span.stop - 1) + 1)
        return Span(self.ratio * span.start, self.ratio * span.stop)


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
    spans: Sequence[Span], length: int, *, margin: int | None = None
) -> list[list[float]]:
    """For each span, the weight of each of its units; over all spans they add up to 1.

    Where two spans overlap, the outer part of each has weight 0 (a tile is least right at its
    edge), and a linear ramp joins them in between. `margin` is the length of that outer part;
    None is a quarter of the overlap. Overlaps of twice the margin or more leave out every unit
    that is nearer to an edge than the margin; shorter ones keep a ramp of at least one unit.
    """
    raw = []
    for index, span in enumerate(spans):
        weights = [1.0] * len(span)
        if index > 0:
            ramp = _ramp(spans[index - 1].stop - span.start, margin)
            for at, weight in enumerate(ramp[: len(weights)]):
                weights[at] = min(weights[at], weight)
        if index + 1 < len(spans):
            ramp = _ramp(span.stop - spans[index + 1].start, margin)
            for at, weight in enumerate(ramp[: len(weights)]):
                weights[-1 - at] = min(weights[-1 - at], weight)
        raw.append(weights)
    totals = [0.0] * length
    for span, weights in zip(spans, raw, strict=True):
        for at, weight in enumerate(weights, start=span.start):
            totals[at] += weight
    return [
        [weight / totals[at] for at, weight in enumerate(weights, start=span.start)]
        for span, weights in zip(spans, raw, strict=True)
    ]


def _ramp(overlap: int, margin: int | None) -> list[float]:
    """Rising weights over an overlap: zeros, a line, ones; symmetric under reversal."""
    outer = overlap // 4 if margin is None else margin
    if 2 * outer > overlap:
        outer = max(0, (overlap - 1) // 2)
    rise = overlap - 2 * outer
    line = [(at + 0.5) / rise for at in range(rise)]
    return [0.0] * outer + line + [1.0] * outer
