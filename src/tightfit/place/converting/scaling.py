"""What is stored becomes what is computed with, in the bytes of the copy alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import torch

from tightfit.weigh.conversions import BLOCK, Grid


def convert(
    stored: torch.Tensor, copy: torch.Tensor, *, scale: torch.Tensor | None, grid: Grid
) -> None:
    """Queue ``(stored.float() * scale.float()).to(copy.dtype)``, written to `copy`.

    The values of a stored dtype are exact in every dtype that is computed in, so the first step
    rounds nothing; the product is taken in float32, or wider where `copy` or `scale` is, and is
    rounded once. No memory is taken for it on a card.

    Args:
        stored: of any shape, in an eight-bit dtype or one that is computed in.
        copy: of the same shape.
        scale: None is that there is none; else one value, one a row, or one for each
            128 x 128 values, as `grid` says.

    One kernel of ours does it on CUDA where it `knows` the dtypes, in a quarter of the time that
    PyTorch's two operators take.
    """
    kernel = _kernel() if stored.device.type == "cuda" else None
    if kernel is not None and kernel.knows(stored, copy, scale):
        if torch.cuda.current_device() == stored.device.index:  # to change it takes as long again
            kernel.convert(stored, copy, scale=scale, grid=grid)
            return
        with torch.cuda.device(stored.device):
            kernel.convert(stored, copy, scale=scale, grid=grid)
        return
    copy.copy_(stored)
    for part, factor in () if scale is None else _parts(copy, scale, grid):
        part.mul_(factor)


@cache
def _kernel() -> ModuleType | None:
    """The one in Triton, where that is there; it comes with PyTorch for CUDA."""
    try:
        from tightfit.place.converting import kernel
    except ImportError:
        return None
    return kernel


def _parts(
    copy: torch.Tensor, scale: torch.Tensor, grid: Grid
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Views of all of `copy`, each with its factor, which always has an axis.

    One without would be rounded to the dtype of the copy before it is multiplied by.
    """
    if grid == "tensor":
        yield copy.unsqueeze(0), scale.reshape(1)
    elif grid == "rows":
        yield copy, scale.reshape(-1, *(1 for _ in copy.shape[1:]))
    else:
        for rows in _cuts(copy.shape[0]):
            for columns in _cuts(copy.shape[1]):
                part: Any = copy[rows[0] : rows[1], columns[0] : columns[1]]
                factor = scale[rows[2] : rows[3], columns[2] : columns[3]]
                apart = part.unflatten(1, (factor.shape[1], -1)).unflatten(0, (factor.shape[0], -1))
                yield apart, factor[:, None, :, None]


def _cuts(size: int) -> Iterator[tuple[int, int, int, int]]:
    """All that falls into whole blocks, and the rest: [first, last) of values and of blocks."""
    whole = size // BLOCK
    if whole:
        yield 0, whole * BLOCK, 0, whole
    if size > whole * BLOCK:
        yield whole * BLOCK, size, whole, whole + 1
