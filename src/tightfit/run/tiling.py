"""Running a VAE tile by tile; results are gathered and blended on the host."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from tightfit.plan.tiles import Edge, Scale, Span, Track, blend_weights, cut
from tightfit.plan.tilesize import Tile
from tightfit.run.delivery import Delivery, hand_over, parts_of
from tightfit.run.intake import Fill, is_whole
from tightfit.run.pieces import Pieces


@dataclass(frozen=True)
class Grid:
    """Where the tiles of one direction read and write, axis by axis.

    Attributes:
        reads: per axis, the span of the source that each tile reads.
        writes: per axis, the span of the result that each tile writes.
        weights: per axis and tile, the blend weights of the units that it writes.
        sizes: of the result, per axis.
        onward: the tiles of the first axis, time, follow each other without an overlap, for a
            network that goes on where it ended.
    """

    reads: tuple[tuple[Span, ...], ...]
    writes: tuple[tuple[Span, ...], ...]
    weights: tuple[list[list[float]], ...]
    sizes: tuple[int, ...]
    onward: bool = False

    @property
    def count(self) -> int:
        """Number of tiles."""
        total = 1
        for spans in self.reads:
            total *= len(spans)
        return total

    @property
    def places(self) -> Iterator[tuple[tuple[int, ...], ...]]:
        """Tiles by their places along each axis: all that have to follow each other, together."""
        ranges = [range(len(spans)) for spans in self.reads]
        if not self.onward:
            yield from (((place),) for place in itertools.product(*ranges))
            return
        time, *space = ranges
        for place in itertools.product(*space):
            yield tuple((at, *place) for at in time)


def lay_grid(
    tracks: Sequence[Track],
    tile: Tile,
    edges: Sequence[Edge | None],
    *,
    time: bool = False,
    onward: bool = False,
) -> Grid:
    """Cut every axis and weigh the overlaps on the side of the result.

    The first axis is `time` for clips: there the later tile takes over once it is right, and the
    frames before are its warm-up, since frames of two tiles blended show ghosts. With `onward`
    nothing overlaps in time.
    """
    reads, writes, weights, sizes = [], [], [], []
    for at, (track, size, overlap, edge) in enumerate(
        zip(tracks, tile.sizes, tile.overlaps, edges, strict=True)
    ):
        whole = Span(0, track.length)
        if onward and at == 0:
            units = _in_turn(track.length, size)
            read, write = (
                [_onward(scale, span) for span in units] for scale in (track.read, track.write)
            )
        else:
            units = cut(track.length, size, overlap) if size < track.length else (whole,)
            read, write = (
                [scale.of(span) for span in units] for scale in (track.read, track.write)
            )
        reads.append(tuple(read))
        writes.append(tuple(write))
        sizes.append(len(track.write.of(whole)))
        ghosts = at == 0 and time and edge is not None and edge.bounded
        weights.append(blend_weights(write, sizes[-1], edge=edge, blend=not ghosts))
    return Grid(tuple(reads), tuple(writes), tuple(weights), tuple(sizes), onward)


def _in_turn(length: int, size: int) -> tuple[Span, ...]:
    """Spans of `size` units one after the other; the last may be shorter."""
    return tuple(Span(at, min(at + size, length)) for at in range(0, length, size))


def _onward(scale: Scale, span: Span) -> Span:
    """The positions that come with these units, where those before them were there already."""
    return Span(scale.length(span.start) if span.start else 0, scale.length(span.stop))


def run_tiled(
    pieces: Pieces,
    source: torch.Tensor,
    *,
    grid: Grid,
    channels: int,
    delivery: Delivery | None = None,
) -> torch.Tensor:
    """Run each tile of each item of `source` [B,C,…]; the result lies on the host.

    The result is [B,`channels`,…] with the sizes of `grid`, in the dtype that calls give.
    Tiles are read from wherever `source` lies and moved to the device one at a time. Sums are
    kept in float32. With a `delivery` all goes there, frame by frame where nothing but time is
    cut, and the result is empty; else it is gathered before, in a file where it is large.
    """
    items = source.shape[0]
    if delivery is not None and items == 1 and grid.onward and len(list(grid.places)) == 1:
        return _given_away(pieces, source, grid, channels, delivery)
    out = _zeros((items, channels, *grid.sizes), delivery)
    dtype = out.dtype
    for item, together in itertools.product(range(items), grid.places):
        reads, writes = (
            [_spans(of, place) for place in together] for of in (grid.reads, grid.writes)
        )
        sources = [_part(source, item, read) for read in reads]
        if grid.onward:
            results = pieces.in_turn(sources, writes)
        else:
            results = [pieces.one(sources[0], writes[0])]
        for place, write, piece in zip(together, writes, results, strict=True):
            pieces.expect(piece, (1, channels, *(len(span) for span in write)))
            dtype, weighed = piece.dtype, piece.float()
            for dim, (weights, at) in enumerate(zip(grid.weights, place, strict=True), start=2):
                if any(weight != 1 for weight in weights[at]):
                    shape = [1] * dim + [-1] + [1] * (piece.dim() - dim - 1)
                    weighed = weighed * torch.tensor(weights[at]).view(shape)
            _part(out, item, write).add_(weighed)
    if delivery is None:
        return out.to(dtype)
    delivery.begin()
    for part in parts_of(out):
        delivery.take(part.to(dtype))
    return out.new_empty((0, *out.shape[1:]))


def _given_away(
    pieces: Pieces, source: torch.Tensor, grid: Grid, channels: int, delivery: Delivery
) -> torch.Tensor:
    """One clip of which time alone is cut."""
    (together,) = grid.places
    reads, writes = ([_spans(of, place) for place in together] for of in (grid.reads, grid.writes))
    pieces.given_away(
        [_part(source, 0, read) for read in reads],
        writes,
        delivery,
        lambda write: (1, channels, *(len(span) for span in write)),
    )
    return torch.empty((0, channels, *grid.sizes))


def _zeros(shape: tuple[int, ...], delivery: Delivery | None) -> torch.Tensor:
    """In memory, or in a file that a delivery has for it."""
    count = math.prod(shape)
    file = None if delivery is None else delivery.spool(4 * count)
    if file is None:
        return torch.zeros(shape, dtype=torch.float32)
    mapped = torch.from_file(str(file), shared=True, size=count, dtype=torch.float32)
    return mapped.view(shape)


def run_whole(
    pieces: Pieces,
    source: torch.Tensor,
    *,
    batch: int,
    sizes: tuple[int, ...] | None,
    delivery: Delivery | None = None,
    fill: Fill = is_whole,
) -> torch.Tensor:
    """Run `batch` items of `source` [B,C,…] at a time; the result [B,C,*sizes] is on the host.

    `sizes` None takes whatever sizes come. With a `delivery` all goes there, straight from the
    device, and the result is empty; one clip of a network that goes in steps, step by step.
    Before anything is read, `source` is filled so far: by items, or by the frames of one clip.
    """
    results = []
    walks = pieces.steps is not None and source.shape[0] == 1
    if delivery is not None and walks and sizes is not None:
        fill(None)
        left = pieces.on_its_way(source, delivery, sizes)
        if left is not None:
            return left
    if delivery is not None:
        pieces = replace(pieces, stay=True)
        delivery.begin()
    for at, part in enumerate(torch.split(source, batch)):
        if source.dim() != 5:
            fill((at + 1) * batch)
        elif not walks:
            fill(None)
        with pieces.filled(fill) if walks and delivery is None else nullcontext():
            piece = pieces.one(part, tuple(Span(0, size) for size in sizes or ()))
        if sizes is not None:
            pieces.expect(piece, (part.shape[0], piece.shape[1], *sizes))
        if delivery is None:
            results.append(piece)
        else:
            results[:] = [hand_over(delivery, piece)]
        del piece
    return results[0] if len(results) == 1 else torch.cat(results)


def _spans(of: tuple[tuple[Span, ...], ...], place: tuple[int, ...]) -> tuple[Span, ...]:
    return tuple(spans[at] for spans, at in zip(of, place, strict=True))


def _part(values: torch.Tensor, item: int, spans: tuple[Span, ...]) -> torch.Tensor:
    """One item [1,C,…] of `values`, within `spans`."""
    return values[(slice(item, item + 1), slice(None), *(span.slice for span in spans))]
