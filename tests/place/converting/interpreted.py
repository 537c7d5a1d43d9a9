"""Runs the kernel under Triton's interpreter, on the CPU; a program of its own, since Triton
decides when it is imported whether it interprets. Prints how many copies are as PyTorch's.

Products in bfloat16 are left to tests on a card: the interpreter cuts them off, a card rounds."""

from __future__ import annotations

import sys
from itertools import product

import torch

from tests.place.converting.nets import SCALINGS, scale_of
from tightfit.place.converting import kernel
from tightfit.place.converting.scaling import convert
from tightfit.weigh.conversions import grid_of

ROWS, COLUMNS = 130, 259


def every_byte(dtype: torch.dtype) -> torch.Tensor:
    """Values that are no numbers, too."""
    values = torch.arange(ROWS * COLUMNS, dtype=torch.int32).remainder(256)
    return values.to(torch.uint8).view(dtype).view(ROWS, COLUMNS)


def main() -> None:
    """Every dtype with every scale."""
    equal = 0
    for scaling, dtype, used in product(SCALINGS, kernel.STORED, kernel.COPIES):
        stored, scale = every_byte(dtype), scale_of(scaling, ROWS, COLUMNS)
        grid = "tensor" if scale is None else grid_of(scale.shape, stored.shape)
        assert grid is not None
        if scale is not None and used is torch.bfloat16:
            continue
        for scales in kernel.SCALES[:2] if scale is not None else kernel.SCALES[:1]:
            factor = None if scale is None else scale.to(scales)
            wanted = torch.empty(ROWS, COLUMNS, dtype=used)
            convert(stored, wanted, scale=factor, grid=grid)
            copy = torch.full_like(wanted, 7)
            assert kernel.knows(stored, copy, factor)
            kernel.convert(stored, copy, scale=factor, grid=grid)
            equal += torch.allclose(copy, wanted, rtol=0, atol=0, equal_nan=True)
    sys.stdout.write(f"{equal}\n")


if __name__ == "__main__":
    main()
