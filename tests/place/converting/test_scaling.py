"""What a stored weight becomes, bit for bit."""

from __future__ import annotations

import pytest
import torch

from tests.cases.common import virtual
from tests.place.converting.nets import SCALINGS, Scaling, scale_of
from tightfit.place.converting.scaling import convert
from tightfit.weigh.conversions import COMPUTES, FLOATS, grid_of

ROWS, COLUMNS = 300, 257  # neither is a multiple of a block


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """Each of the 256 several times, but for those that are no numbers."""
    values = torch.arange(ROWS * COLUMNS, dtype=torch.int32).remainder(256).to(torch.uint8)
    stored = values.view(dtype)
    finite = stored.float().isfinite()
    return torch.where(finite, values, 0).view(dtype).view(ROWS, COLUMNS)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int8])
@pytest.mark.parametrize("used", COMPUTES)
@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16, torch.float16])
def test_the_product_is_taken_in_float32_and_rounded_once(
    scaling: Scaling, dtype: torch.dtype, used: torch.dtype, scales: torch.dtype
) -> None:
    """Of every value that there is; float64 has the exact product of what float32 holds."""
    stored = every_value(dtype)
    scale = scale_of(scaling, ROWS, COLUMNS)
    wide = stored.to(torch.float64 if used is torch.float64 else torch.float32)
    if scale is not None:
        scale = scale.to(scales)
        factor = scale.to(wide.dtype)
        if scaling == "blocks":
            factor = factor.repeat_interleave(128, 0).repeat_interleave(128, 1)
            factor = factor[:ROWS, :COLUMNS]
        elif scaling != "tensor":
            factor = factor.reshape(-1, 1)
        wide = wide * factor
    copy = torch.full((ROWS, COLUMNS), float("nan"), dtype=used)
    grid = "tensor" if scale is None else grid_of(scale.shape, stored.shape)
    assert grid is not None
    convert(stored, copy, scale=scale, grid=grid)
    assert torch.equal(copy, wide.to(used))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_it_takes_nothing_of_a_card(scaling: Scaling) -> None:
    """The copy is all that is taken, whatever the scale."""
    card = virtual(1 << 30)
    stored = every_value(torch.float8_e4m3fn).to(card.device)
    scale = scale_of(scaling, ROWS, COLUMNS)
    there = None if scale is None else scale.to(card.device)
    copy = torch.empty(ROWS, COLUMNS, dtype=torch.bfloat16, device=card.device)
    grid = "tensor" if scale is None else grid_of(scale.shape, stored.shape)
    assert grid is not None
    card.reset_peaks()
    before = card.read().allocated
    convert(stored, copy, scale=there, grid=grid)
    assert card.read().peak_allocated == card.read().allocated == before


def test_kernels_of_convolutions_are_scaled_by_their_rows() -> None:
    """Whatever comes after the first axis."""
    stored = torch.randn(8, 3, 3, 3).to(torch.float8_e4m3fn)
    scale = torch.rand(8, 1, 1, 1)
    assert grid_of(scale.shape, stored.shape) == "rows"
    copy = torch.empty(8, 3, 3, 3)
    convert(stored, copy, scale=scale, grid="rows")
    assert torch.equal(copy, stored.float() * scale)
