"""From what pieces of tiles gave to one buffer: raw tiles are left out of the planes, and kept."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from tightfit.place.packing.recipe import MOST_ESCAPES, TILE, Recipe, code_bytes


@dataclass(frozen=True)
class Found:
    """What encoding found, a tensor a piece, in the order of tiles.

    Attributes:
        bases: uint8 [tiles of the piece].
        counts: int64 [tiles of the piece]: escapes of each; -1 where the tile stays raw.
        positions: int16 [escapes]; of 12 bits alone.
        exponents: uint8 [escapes].
    """

    bases: list[torch.Tensor] = field(default_factory=list)
    counts: list[torch.Tensor] = field(default_factory=list)
    positions: list[torch.Tensor] = field(default_factory=list)
    exponents: list[torch.Tensor] = field(default_factory=list)


def assembled(
    words: torch.Tensor,
    bits: int,
    *,
    made: torch.Tensor,
    planes: tuple[torch.Tensor, torch.Tensor],
    found: Found,
) -> tuple[torch.Tensor, Recipe] | None:
    """The packed buffer and its recipe; None where it would not be smaller than `words`.

    Args:
        words: int16, the values.
        bits: of the format.
        made: uint8, a buffer for the case that all tiles are packed and escapes are few.
        planes: signs [tiles, TILE] and codes [tiles, …], views of `made`.
        found: the rest.
    """
    count, device = words.numel(), words.device
    tiles = planes[0].shape[0]
    counts, bases = torch.cat(found.counts), torch.cat(found.bases)
    kept = counts >= 0
    packed = int(kept.sum())
    escapes = sum(part.numel() for part in found.exponents)
    if not packed or escapes > MOST_ESCAPES:
        return None
    last_kept = bool(kept[-1])
    recipe = Recipe.of(
        count,
        bits=bits,
        packed=packed,
        escapes=escapes,
        ordered=packed < tiles and not bool(kept[:packed].all()),
        tail_raw=count % TILE != 0 and not last_kept,
    )
    if recipe.bytes >= 2 * count:
        return None
    at = recipe.sections
    if packed < tiles or recipe.bytes > made.numel():
        made = torch.empty(recipe.bytes, dtype=torch.uint8, device=device)
        which = kept.nonzero().view(-1)
        for plane, offset in zip(planes, (at.signs, at.codes), strict=True):
            width = plane.shape[1]
            target = made[offset : offset + packed * width].view(packed, width)
            torch.index_select(plane, 0, which, out=target)
        bases, counts = bases[which], counts[which]
    made = made[: recipe.bytes]
    starts = torch.zeros(packed + 1, dtype=torch.int32, device=device)
    torch.cumsum(counts, 0, dtype=torch.int32, out=starts[1:])
    parts = [(at.bases, bases), (at.starts, starts)]
    parts += [(at.positions, torch.cat(found.positions))] if found.positions else []
    parts += [(at.exponents, torch.cat(found.exponents))] if found.exponents else []
    if recipe.ordered:
        order = torch.cat((kept.nonzero().view(-1), (~kept).nonzero().view(-1)))
        parts.append((at.order, order.to(torch.int32)))
    if packed < tiles:
        parts.append((at.raw, _raw(words, kept)))
    made[at.signs + packed * TILE : at.codes] = 0
    made[at.codes + packed * code_bytes(bits) : at.bases] = 0
    made[at.bases :] = 0
    for offset, part in parts:
        flat = part.contiguous().view(-1).view(torch.uint8)
        made[offset : offset + flat.numel()] = flat
    return made, recipe


def _raw(words: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """int16: the tiles that are not kept packed, the last one perhaps in part."""
    whole = words.numel() // TILE
    full = words[: whole * TILE].view(whole, TILE)[(~kept[:whole]).nonzero().view(-1)].view(-1)
    if whole < kept.numel() and not bool(kept[-1]):
        return torch.cat((full, words[whole * TILE :]))
    return full
