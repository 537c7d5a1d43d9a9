"""What operators take of the card beside what they read and make, when they run on strips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tightfit.run.strips.part import Part
from tightfit.weigh.workspace import CUDA

Scratch = Callable[[Part, int, int], float]
"""For a part, with the bytes that it reads first and makes: bytes for each of those."""


@dataclass(frozen=True)
class _Operator:
    name: str
    weight: tuple[int, ...]
    reads: int
    writes: int


def _of_cuda(part: Part, reads: int, writes: int) -> float:
    """By the table of `weigh.workspace`, but for pictures: channels last they need no copies.

    (Measured on an H200, torch 2.11: 3×3 convolutions of 128 to 512 channels, bf16.)
    """
    if part.name == "convolution" and len(part.weight) < _CLIP_WEIGHT:
        return 0.0
    name = "scaled_dot_product_attention" if part.name == "attention" else part.name
    taken = CUDA.of(_Operator(name, part.weight, reads, writes))
    return taken / max(1, reads + writes)


def _nothing(part: Part, reads: int, writes: int) -> float:
    del part, reads, writes
    return 0.0


_CLIP_WEIGHT = 5


def scratch_of(kind: str) -> Scratch:
    """What is known of a card of `kind`."""
    return _of_cuda if kind == "cuda" else _nothing
