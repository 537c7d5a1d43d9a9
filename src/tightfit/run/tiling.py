"""Running a VAE tile by tile; results are gathered and blended on the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tightfit.plan.tiles import Axis, Span, blend_weights, cut
from tightfit.plan.tilesize import Tile
from tightfit.run.vae import Direction, Traits


@dataclass(frozen=True)
class Grid:
    """Where the tiles of one direction read and write, axis by axis.

    Attributes:
        reads: per axis, the span of the source that each tile reads.
        writes: per axis, the span of the result that each tile writes.
        weights: per axis and tile, the blend weights of the units that it writes.
        sizes: of the result, per axis.
    """

    reads: tuple[tuple[Span, ...], ...]
    writes: tuple[tuple[Span, ...], ...]
    weights: tuple[list[list[float]], ...]
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of tiles."""
        total = 1
        for spans in self.reads:
            total *= len(spans)
        return total


def lay_grid(axes: tuple[Axis, ...], tile: Tile, direction: Direction, halo: int | None) -> Grid:
    """Cut every axis and weigh the overlaps on the side of the result."""
    reads, writes, weights, sizes = [], [], [], []
    for axis, size, overlap in zip(axes, tile.sizes, tile.overlaps, strict=True):
        latent = cut(axis.length, size, overlap) if size < axis.length else (Span(0, axis.length),)
        samples = tuple(axis.covered(span) for span in latent)
        margin = None if halo is None else halo * (1 if direction == "encode" else axis.ratio)
        read, write = (samples, latent) if direction == "encode" else (latent, samples)
        length = axis.length if direction == "encode" else axis.samples
        reads.append(read)
        writes.append(write)
        sizes.append(length)
        weights.append(blend_weights(write, length, margin=margin))
    return Grid(tuple(reads), tuple(writes), tuple(weights), tuple(sizes))


def run_tiled(
    call: Callable[[torch.Tensor], torch.Tensor],
    source: torch.Tensor,
    *,
    grid: Grid,
    channels: int,
    traits: Traits,
    device: torch.device,
    before_call: Callable[[], None],
    after_call: Callable[[], None],
) -> torch.Tensor:
    """Run `call` on each tile of each item of `source` [B,C,…]; the result lies on the host.

    The result is [B,`channels`,…] with the sizes of `grid`.

    Tiles are read from wherever `source` lies and moved to `device` one at a time. Sums are kept
    in float32; the result has the dtype that `call` gives. A result of an unexpected shape raises
    `RuntimeError` naming both shapes.
    """
    items = source.shape[0]
    out = torch.zeros((items, channels, *grid.sizes), dtype=torch.float32)
    dtype = out.dtype
    places = list(itertools.product(*(range(len(spans)) for spans in grid.reads)))
    for item, place in itertools.product(range(items), places):
        before_call()
        read = tuple(spans[at].slice for spans, at in zip(grid.reads, place, strict=True))
        write = tuple(spans[at] for spans, at in zip(grid.writes, place, strict=True))
        piece = _one(call, source[(slice(item, item + 1), slice(None), *read)], device)
        dtype = piece.dtype
        _expect(piece, (1, channels, *(len(span) for span in write)), traits)
        piece = piece.float()
        for dim, (weights, at) in enumerate(zip(grid.weights, place, strict=True)):
            shape = [1] * piece.dim()
            shape[dim + 2] = -1
            piece *= torch.tensor(weights[at], dtype=torch.float32).view(shape)
        out[(slice(item, item + 1), slice(None), *(span.slice for span in write))] += piece
        after_call()
    return out.to(dtype)


def run_whole(
    call: Callable[[torch.Tensor], torch.Tensor],
    source: torch.Tensor,
    *,
    batch: int,
    sizes: tuple[int, ...] | None,
    traits: Traits,
    device: torch.device,
    before_call: Callable[[], None],
    after_call: Callable[[], None],
) -> torch.Tensor:
    """Run `call` on `batch` items at a time; the result [B,C,*sizes] lies on the host.

    `sizes` None takes whatever sizes come.
    """
    pieces = []
    for start in range(0, source.shape[0], batch):
        before_call()
        piece = _one(call, source[start : start + batch], device)
        if sizes is not None:
            _expect(piece, (min(batch, source.shape[0] - start), piece.shape[1], *sizes), traits)
        pieces.append(piece)
        after_call()
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _expect(piece: torch.Tensor, shape: tuple[int, ...], traits: Traits) -> None:
    if tuple(piece.shape) != shape:
        raise RuntimeError(
            f"{traits.name} gave {tuple(piece.shape)} where its traits promise {shape}"
        )


def _one(
    call: Callable[[torch.Tensor], torch.Tensor], piece: torch.Tensor, device: torch.device
) -> torch.Tensor:
    """One call on one contiguous piece on the device, back on the host as a tensor of its own."""
    with torch.no_grad():
        result = call(piece.to(device).contiguous())
        return result.detach().to("cpu", copy=result.device.type == "cpu")
