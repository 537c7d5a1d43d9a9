"""Runs the kernel under Triton's interpreter, on the CPU; a program of its own, since Triton
decides when it is imported whether it interprets. Prints how many buffers came back."""

from __future__ import annotations

import sys

import torch

from tests.place.packing.weights import HOSTILE, gaussian, mixed, of_bits, same
from tightfit.place.packing import kernel
from tightfit.place.packing.codec import encode
from tightfit.place.packing.recipe import TILE


def buffers() -> list[torch.Tensor]:
    """Few tiles each, since a program a tile is slow here: every path of the kernel once."""
    draw = torch.Generator().manual_seed(0)
    weights = gaussian(3 * TILE, draw)
    outliers = weights.clone()
    outliers[::41] = of_bits(torch.tensor(0x7FA5))
    outliers[::3] = 0
    hostile = HOSTILE["any bits"](2 * TILE, draw)
    return [
        weights,
        outliers[:-900],
        torch.cat((weights, hostile, weights, hostile[:100])),
        torch.cat((hostile, weights[: 2 * TILE - 300])),
        mixed(3 * TILE + 5000, 1, longest=6000),
    ]


def main() -> None:
    """Every buffer in both formats, and shares of a tile in several ways."""
    equal = 0
    for values in buffers():
        for bits, shares in ((12, 1), (12, 4), (11, 1)):
            packed = encode(values, bits=bits)
            assert packed is not None
            out = torch.full_like(values, 1.5)
            kernel.decode(*packed, out, shares=shares)
            equal += same(out, values)
    sys.stdout.write(f"{equal}\n")


if __name__ == "__main__":
    main()
