"""A part of a network as strips see it, and some rows of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from tightfit.plan.strips.network import Kind
from tightfit.plan.strips.reach import Reach

Span = tuple[int, int]
"""Rows, from the first to the one behind the last."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a part reads of one value.

    Attributes:
        value: its number.
        axis: along which its rows lie; None takes all of it, as it is.
        reach: which rows.
    """

    value: int
    axis: int | None = None
    reach: Reach | None = None


Run = Callable[[Sequence[torch.Tensor], Span, Sequence[Span]], Sequence[torch.Tensor]]
"""Called with what is read (those rows that are needed), the rows that are to be made, and which
rows were given of each; gives what is made."""


@dataclass(frozen=True, slots=True)
class Part:
    """An operator, or a half of one.

    Attributes:
        name: of the operator.
        kind: how it can be done.
        needs: what it reads, in the order of its arguments.
        makes: numbers of what it makes.
        axis: along which the rows of that lie; None for what has none.
        run: does it. Of `Kind.SUMS`, on each strip; `finish` then makes one of the results.
        finish: of `Kind.SUMS` alone.
        flops: in all.
        weight: shape of the first weight that it reads.
        spare: rows that it makes beside those that are wanted: of any strip, and of one at an edge.
    """

    name: str
    kind: Kind
    needs: tuple[Need, ...]
    makes: tuple[int, ...]
    axis: int | None
    run: Run
    finish: Callable[[Sequence[Sequence[torch.Tensor]]], torch.Tensor] | None = None
    flops: int = 0
    weight: tuple[int, ...] = field(default=())
    spare: tuple[int, int] = (0, 0)
