"""Seeded random weights for a network of any size, in the dtype that it is kept in."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import cpu_count

import torch
from torch import nn

from tightfit.weigh import Held, Kind, identity, weights

_CHUNK = 1 << 22
"""Values that one thread draws at a time; the numbers depend on it, and not on the threads."""

_ROW = 16
"""PyTorch draws halves as the rounded numbers of float32 where they are so many, or a multiple."""


@contextmanager
def unfilled() -> Iterator[None]:
    """While inside, constructors make parameters without memory; buffers have their values."""
    from accelerate import init_empty_weights  # type: ignore[import-untyped]

    with init_empty_weights(include_buffers=False):
        yield


def draw(module: nn.Module) -> None:
    """Give every parameter that has no memory its values, seeded by its path; ties are drawn once.

    Matrices and kernels are normal with a deviation of 1/sqrt(fan in), so that what goes through
    them keeps its scale; gains are 1 and biases are 0. The numbers are those of float32, drawn in
    pieces and rounded to the dtype of the parameter: the host needs no second copy.
    """
    made: dict[object, nn.Parameter] = {}
    with ThreadPoolExecutor(max(1, cpu_count() or 1)) as pool:
        pieces = []
        for held in list(weights(module)):
            if held.kind is not Kind.PARAMETER or held.tensor.device.type != "meta":
                continue
            key = identity(held.tensor)
            if key not in made:
                there = torch.empty(held.tensor.shape, dtype=held.tensor.dtype)
                made[key] = nn.Parameter(there, requires_grad=False)
                value = _constant(held)
                if value is not None:
                    there.fill_(value)
                else:
                    scale = 1 / math.sqrt(max(1, math.prod(there.shape[1:])))
                    flat = there.view(-1)
                    pieces += [
                        pool.submit(_fill, held.path, start, flat[start : start + _CHUNK], scale)
                        for start in range(0, flat.numel(), _CHUNK)
                    ]
            held.owner._parameters[held.name] = made[key]
        for piece in pieces:
            piece.result()


def _constant(held: Held) -> float | None:
    """Of what is no matrix and no kernel: a value for each channel, whatever axis that is on."""
    shape = held.tensor.shape
    if held.tensor.numel() > max(shape, default=1):
        return None
    return 0.0 if held.name.endswith(("bias", "beta")) else 1.0


def _fill(path: str, start: int, goal: torch.Tensor, scale: float) -> None:
    seed = int.from_bytes(hashlib.sha256(f"{path}@{start}".encode()).digest()[:8], "little") >> 1
    generator = torch.Generator().manual_seed(seed)
    if goal.numel() % _ROW == 0:
        goal.normal_(0, scale, generator=generator)
    else:
        wide = torch.empty(goal.shape, dtype=torch.float32)
        goal.copy_(wide.normal_(0, scale, generator=generator))
