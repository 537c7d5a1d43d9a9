"""The retry where it should not be: inside the handler of the failed try, in fixed tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from rows import Try
from scales import Scale

from tightfit.card import Card
from tightfit.run.vae import Direction, Vae


@dataclass(frozen=True)
class Measured(Try):
    """A try of the plain retry."""

    peak_reserved: int = 0

    def plain(self) -> Try:
        """As it goes into a row."""
        fields = {name: getattr(self, name) for name in Try.__dataclass_fields__}
        return Try(**fields)


def retried_inside(
    card: Card,
    vae: Vae,
    direction: Direction,
    source: torch.Tensor,
    scale: Scale,
    tries: list[Measured],
) -> torch.Tensor | None:
    """Whole, then in the except block tiles of falling size; what became of each is in `tries`."""
    call = vae.call(direction)
    baseline = card.read().allocated

    def attempt(rung: str, tile: int | None, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        card.reset_peaks()
        before = card.read()
        outcome = "oom"
        try:
            value = work()
            outcome = "ok"
        finally:
            after = card.read()
            tries.append(
                Measured(
                    rung,
                    outcome,
                    tile=None if tile is None else (tile, tile),
                    held_before_bytes=before.allocated,
                    baseline_bytes=baseline,
                    peak_bytes=after.peak_allocated,
                    refusals=after.refused_since(before),
                    peak_reserved=after.peak_reserved or 0,
                )
            )
        return value

    try:
        return attempt("whole", None, lambda: call(source).cpu())
    except torch.OutOfMemoryError:
        for tile in scale.tiles:
            with suppress(torch.OutOfMemoryError):
                work = partial(
                    plain_tiles,
                    call,
                    source,
                    tile=tile,
                    overlap=scale.overlap,
                    vae=vae,
                    direction=direction,
                )
                return attempt(f"tiles {tile}x{tile}", tile, work)
    return None


def plain_tiles(
    call: Callable[[torch.Tensor], torch.Tensor],
    source: torch.Tensor,
    *,
    tile: int,
    overlap: int,
    vae: Vae,
    direction: Direction,
) -> torch.Tensor:
    """What a loop written in a hurry does: fixed stride, linear ramps, sums on the host.

    `source` is [B,C,T,H,W]; `tile` and `overlap` are in pixels.
    """
    ratio = vae.traits.spatial
    step_in, step_out = (1, ratio) if direction == "encode" else (ratio, 1)
    size, over = tile // step_in, overlap // step_in  # in units of the source
    height, width = source.shape[-2:]
    out: torch.Tensor | None = None
    total = torch.zeros(())
    for top in range(0, height - over, size - over):
        for left in range(0, width - over, size - over):
            piece = source[..., top : top + size, left : left + size].contiguous()
            result = call(piece).float().cpu()
            if out is None:
                full = [n * step_in // step_out for n in (height, width)]
                out = torch.zeros(*result.shape[:-2], *full)
                total = torch.zeros(full)
            at = [n * step_in // step_out for n in (top, left)]
            weight = _ramps(result.shape[-2:], overlap // step_out, at, list(out.shape[-2:]))
            rows = slice(at[0], at[0] + result.shape[-2])
            columns = slice(at[1], at[1] + result.shape[-1])
            out[..., rows, columns] += result * weight
            total[rows, columns] += weight
    assert out is not None
    return (out / total).to(source.dtype)


def _ramps(size: Sequence[int], over: int, at: Sequence[int], full: Sequence[int]) -> torch.Tensor:
    """Weights [h,w] of a tile: 1 inside, rising over `over` units on every inner side."""
    sides = []
    for length, start, end in zip(size, at, full, strict=True):
        line = torch.ones(length)
        rise = (torch.arange(over) + 0.5) / over
        if start > 0:
            line[:over] *= rise
        if start + length < end:
            line[-over:] *= rise.flip(0)
        sides.append(line)
    return sides[0][:, None] * sides[1][None, :]
