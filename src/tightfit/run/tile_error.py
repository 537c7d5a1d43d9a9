"""How far tiles of a network are from the whole, measured on pieces that are small enough for both.

What makes tiles differ is what reaches across the whole axis: statistics of a norm, attention. The
pieces are as many tiles as the real input, but smaller ones, so that each sees less of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite

import torch

from tightfit.plan.tiles import Edge, Track
from tightfit.plan.tilesize import Tile
from tightfit.run.pieces import Pieces
from tightfit.run.tiling import lay_grid, run_tiled, run_whole

SIDE = 24
"""Units of a piece in space at most, if its tiles are not larger."""
FRAMES = 2
"""Units of a piece in time at most, where time is not cut."""
_LEAST = 4
"""Units of a tile of the piece at least."""
SAFETY = 2.0
"""Times what was measured. On toys and shipped weights, over noise, ramps and photographs, the
measure alone was 0.7 times what the whole differed by, at the lowest."""


def tile_error(
    pieces: Pieces,
    source: torch.Tensor,
    *,
    tracks: Sequence[Track],
    tile: Tile,
    edges: Sequence[Edge | None],
    time: bool,
    channels: int,
) -> float | None:
    """A bound on the relative rms of `tile` on `source` [B,C,…], a host tensor, against the whole.

    Two pieces of the source are run whole and in tiles, no larger than `tile`: one from its
    middle, and its first item made smaller, which has what varies slowly. The bound is that of
    the worse, times `SAFETY`. None where the pieces are too small to be cut.
    """
    small, parts = [], []
    for at, (track, size, overlap) in enumerate(
        zip(tracks, tile.sizes, tile.overlaps, strict=True)
    ):
        is_time, is_cut = time and at == 0, size < track.length
        length = min(size, FRAMES if is_time and not is_cut else SIDE)
        if is_cut:
            count = -(-(track.length - overlap) // (size - overlap))
            share = overlap / size
            part = max(_LEAST, -int(-length // (1 + (1 - share) * (count - 1))))
            part = min(part, length - 1)
            parts.append((part, min(overlap, part // 2)))
        else:
            parts.append((length, 0))
        small.append(replace(track, length=length))
    if any(part < 2 for part, _ in parts) or all(
        part >= track.length for (part, _), track in zip(parts, small, strict=True)
    ):
        return None
    sizes, overlaps = zip(*parts, strict=True)
    grid = lay_grid(small, Tile(sizes, overlaps), edges, time=time)
    worst = 0.0
    for piece in _pieces_of(source[:1], tuple(t.read.length(t.length) for t in small), time=time):
        whole = run_whole(pieces, piece, batch=1, sizes=grid.sizes).float()
        tiled = run_tiled(pieces, piece, grid=grid, channels=channels).float()
        level = float(whole.square().mean().sqrt())
        off = float((tiled - whole).square().mean().sqrt())
        if not isfinite(level) or not isfinite(off):
            return None
        worst = max(worst, off / level if level else 0.0)
    return worst * SAFETY


def _pieces_of(item: torch.Tensor, sizes: tuple[int, ...], *, time: bool) -> Iterator[torch.Tensor]:
    """From the middle, and the whole made smaller; the first frames of a clip."""
    if time:
        item = item[:, :, : sizes[0]]
    middle = [
        slice((length - size) // 2, (length - size) // 2 + size)
        for length, size in zip(item.shape[2:], sizes, strict=True)
    ]
    yield item[(slice(None), slice(None), *middle)]
    frames = item.transpose(1, 2).flatten(0, 1) if time else item
    shrunk = frames.float()
    for dim, size in enumerate(sizes[1:] if time else sizes, start=2):
        shrunk = _shorter(shrunk, dim, size)
    if time:
        shrunk = shrunk.view(1, sizes[0], *shrunk.shape[1:]).transpose(1, 2)
    yield shrunk.to(item.dtype)


def _shorter(values: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """`values` whose axis `dim` is `size` long, each a mean of what it covers."""
    rows = values.movedim(dim, -1)
    flat = torch.nn.functional.adaptive_avg_pool1d(rows.reshape(1, -1, rows.shape[-1]), size)
    return flat.view(*rows.shape[:-1], size).movedim(-1, dim)
