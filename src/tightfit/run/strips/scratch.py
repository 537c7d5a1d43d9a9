"""What operators take of the card beside what they read and make, when they run on strips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tightfit.run.strips.part import Part
from tightfit.weigh.workspace import CUDA

Scratch = Callable[[Part, int, int], float]


@dataclass(frozen=True)
class _Operator:
    name: str
    weight: tuple[int, ...]
    reads: int
    writes: int


def _of_cuda(part: Part, reads: int, writes: int) -> float:
    """By the table of `weigh.workspace`, which was measured on contiguous tensors."""
    name = "scaled_dot_product_attention" if part.name == "attention" else part.name
    taken = CUDA.of(_Operator(name, part.weight, reads, writes))
    return taken / max(1, reads + writes)


def _nothing(part: Part, reads: int, writes: int) -> float:
    del part, reads, writes
    return 0.0


def scratch_of(kind: str) -> Scratch:
    """For a card of `kind`: bytes for each byte that a part reads first and makes."""
    return _of_cuda if kind == "cuda" else _nothing
