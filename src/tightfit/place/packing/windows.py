"""Which exponents of a tile get codes: the window that covers the most values."""

from __future__ import annotations

import torch

from tightfit.place.packing.recipe import WINDOW

EVERY = 15
"""One value of so many is looked at; odd, since weights repeat in powers of two."""
_KINDS = 256


def choose(
    exponents: torch.Tensor, bits: int, *, every: int = EVERY
) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest exponent of the window of each tile, and what it misses.

    A sample decides; of windows that cover as many of its values, the one whose top is next to the
    largest exponent of the tile, yet not beyond the sample's by more than one.

    Args:
        exponents: uint8 [n, TILE].
        bits: of the format; with 12, exponent 0 has a code of its own and is left out.
        every: one value of so many is looked at.

    Returns:
        uint8 [n], and int64 [n]: values of the sample outside the window.
    """
    count, window = exponents.shape[0], WINDOW[bits]
    sample = exponents[:, ::every].to(torch.int32)
    places = torch.arange(0, count * _KINDS, _KINDS, dtype=torch.int32, device=sample.device)
    sample += places[:, None]
    kinds = torch.bincount(sample.view(-1), minlength=count * _KINDS).view(count, _KINDS)
    least = 0
    if bits == 12:
        kinds[:, 0] = 0
        least = 1
    below = torch.cat((kinds.new_zeros(count, 1), kinds.cumsum(1)), dim=1)
    covered = below[:, least + window :] - below[:, least : _KINDS - window + 1]
    total, beyond = below.max(1)  # the first of equal ones: one above the largest that was seen
    top = torch.minimum(exponents.amax(1), beyond)
    tops = torch.arange(least + window - 1, _KINDS, device=exponents.device)
    score = covered * _KINDS
    score -= (tops - top[:, None]).abs_()
    best = score.argmax(1)
    missed = total - covered.gather(1, best[:, None])[:, 0]
    return (best + least).to(torch.uint8), missed


def spread_sum(flags: torch.Tensor) -> torch.Tensor:
    """int64 [n]: how many of uint8 [n, TILE], each 0 or 1, are set; eight are added at a time."""
    count = flags.shape[0]
    eights = flags.view(torch.int64).view(count, 8, -1).sum(1)
    eights = eights.view(count, 8, -1).sum(1)
    return eights.view(torch.uint8).view(count, -1).sum(1)
