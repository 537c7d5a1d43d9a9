"""Sums of each channel and of its squares, by one Triton kernel; imported only where Triton is.

PyTorch's own sums over all but the last axis take ten times as long, and scratch. Each program adds
up a share of the rows; the shares are added in their order, so that the result is always the same.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, operator"

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

_PROGRAMS = 1024
_STEP, _WIDTH = 32, 128


def sums_of(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a contiguous matrix [M,C]: the sums of its columns and of their squares, float64 [C]."""
    rows, channels = matrix.shape
    share = -(-rows // (_PROGRAMS * _STEP)) * _STEP
    shares = -(-rows // share)
    made = torch.empty((2, shares, channels), dtype=torch.float32, device=matrix.device)
    grid = (shares, -(-channels // _WIDTH))
    _add_up[grid](matrix, made, rows, channels, share, shares, STEP=_STEP, WIDTH=_WIDTH)
    sums, squares = made.sum(1, dtype=torch.float64)
    return sums, squares


@triton.jit
def _add_up(matrix, made, rows, channels, share, shares, STEP: tl.constexpr, WIDTH: tl.constexpr):
    part = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    sums = tl.zeros((WIDTH,), tl.float32)
    squares = tl.zeros((WIDTH,), tl.float32)
    for offset in range(0, share, STEP):
        lines = part * share + offset + tl.arange(0, STEP)
        real = (lines < rows)[:, None] & inside[None, :]
        places = lines[:, None] * channels + columns[None, :]
        values = tl.load(matrix + places, mask=real, other=0.0).to(tl.float32)
        sums += tl.sum(values, 0)
        squares += tl.sum(values * values, 0)
    tl.store(made + part * channels + columns, sums, mask=inside)
    tl.store(made + (shares + part) * channels + columns, squares, mask=inside)
