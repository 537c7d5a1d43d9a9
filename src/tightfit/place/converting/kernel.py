"""Conversion by one Triton kernel a weight; imported only where Triton is.

Each stored byte is read once and each value of the copy written once. All offsets are 64-bit.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, operator"

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

from tightfit.weigh.conversions import BLOCK, Grid

STORED = {torch.float8_e4m3fn: 0, torch.float8_e5m2: 1, torch.int8: 2}
"""Dtypes that it reads, by the number that it knows them by."""
COPIES = {
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float32: tl.float32,
}
"""Dtypes that it writes: the product is taken in float32."""
SCALES = (torch.float32, torch.bfloat16, torch.float16)
_WIDTH = 4096
"""Values that a program converts."""
_ALIGNMENT = 16


def knows(stored: torch.Tensor, copy: torch.Tensor, scale: torch.Tensor | None) -> bool:
    """Whether `convert` can do it."""
    return (
        stored.dtype in STORED
        and copy.dtype in COPIES
        and (scale is None or scale.dtype in SCALES)
        and all(each.is_contiguous() for each in (stored, copy, scale) if each is not None)
        and stored.device == copy.device == (copy if scale is None else scale).device
        and not (stored.data_ptr() % _ALIGNMENT or copy.data_ptr() % _ALIGNMENT)
    )


def convert(
    stored: torch.Tensor, copy: torch.Tensor, *, scale: torch.Tensor | None, grid: Grid
) -> None:
    """As `scaling.convert`, for what it `knows`; nothing is allocated."""
    if not stored.numel():
        return
    rows, columns = 1, stored.numel()
    if scale is not None and grid != "tensor":
        rows, columns = stored.shape[0], stored.numel() // stored.shape[0]
    width = min(_WIDTH, triton.next_power_of_2(columns))
    _convert[(rows * triton.cdiv(columns, width),)](
        stored.view(torch.uint8),
        copy,
        copy if scale is None else scale,
        columns,
        triton.cdiv(columns, BLOCK),
        STORED=STORED[stored.dtype],
        USED=COPIES[copy.dtype],
        SCALED=scale is not None,
        BLOCKS=grid == "blocks",
        BLOCK=BLOCK,
        WIDTH=width,
        num_warps=4,
    )


@triton.jit
def _convert(
    stored,
    copy,
    scale,
    columns,
    blocks,
    STORED: tl.constexpr,
    USED: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    parts = tl.cdiv(columns, WIDTH)
    row = (tl.program_id(0) // parts).to(tl.int64)
    column = (tl.program_id(0) % parts).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    there = column < columns
    at = row * columns + column
    byte = tl.load(stored + at, mask=there, other=0, eviction_policy="evict_first")
    if STORED == 2:
        value = byte.to(tl.int8, bitcast=True).to(tl.float32)
    elif STORED == 1:
        # The upper half of a float16.
        value = (byte.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        # Its exponent and mantissa are a float16's of three bits less, 2**8 times smaller.
        word = byte.to(tl.int16)
        half = ((word & 0x80) << 8) | ((word & 0x7F) << 7)
        value = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        value = tl.where((word & 0x7F) == 0x7F, float("nan"), value)
    if SCALED:
        if BLOCKS:
            factor = tl.load(
                scale + (row // BLOCK) * blocks + column // BLOCK, mask=there, other=0.0
            )
        else:
            factor = tl.load(scale + row)
        value = value * factor.to(tl.float32)
    tl.store(copy + at, value.to(USED), mask=there)
