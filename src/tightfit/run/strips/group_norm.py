"""A group norm in two halves: statistics, added up strip by strip, and what they are used for.

Each strip gives count, mean and sum of squared differences from it of every channel; the strips,
and then the channels of a group, are merged pairwise exact formulas in float64 (Chan, Golub and
LeVeque, 1983), in the order of the strips. The second half is a batch norm with these statistics,
which computes in float32 and rounds once, as a group norm does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch.nn import functional

from tightfit.plan.strips.network import Kind
from tightfit.plan.strips.reach import SAME
from tightfit.run.strips.part import Need, Part, Span
from tightfit.run.strips.seen import Seen


def halves(seen: Seen, statistics: int) -> tuple[Part, Part] | None:
    """Both parts of a group norm; `statistics` numbers what is between them.

    None where the rows cannot be told apart.
    """
    axis = seen.axis
    if axis is None or axis < 2:
        return None
    _, groups, weight, bias, epsilon = seen.node.args
    made = tuple(number for number in seen.node.makes if number is not None)
    params = [Need(value) for value in seen.node.reads[1:]]

    def add_up(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        del rows, given
        return _moments(tensors[0])

    def finish(strips: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
        return _merged(strips, groups)

    sums = Part(
        "statistics",
        Kind.SUMS,
        (Need(seen.source, axis, SAME),),
        (statistics,),
        None,
        add_up,
        finish,
    )

    def apply(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        del rows, given
        source, told, *rest = tensors
        scale = rest.pop(0) if weight is not None else None
        shift = rest.pop(0) if bias is not None else None
        return [_applied(source, told, scale, shift, epsilon)]

    norm = Part(
        "group_norm",
        Kind.LOCAL,
        (Need(seen.source, axis, SAME), Need(statistics), *params),
        made,
        axis,
        apply,
    )
    return sums, norm


def statistics_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of what is between the halves: mean and variance, for each item and channel."""
    return (2, shape[0], shape[1])


def _moments(strip: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Count, mean and sum of squared differences of each item and channel, float64 [N,C]."""
    axes = tuple(range(2, strip.dim()))
    count = strip[0, 0].numel()
    if strip.dtype in (torch.float32, torch.float64):
        variance, means = torch.var_mean(strip, axes, correction=0)
        mean, squares = means.double(), variance.double() * count
    else:
        sums, raised = _sums(strip)
        mean = sums / count
        squares = (raised - mean.square() * count).clamp_min(0)
    return torch.full_like(squares, count), mean, squares


def _sums(strip: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of the values and of their squares for each item and channel, float64 [N,C].

    Added up in float32 over some of the values, and in float64 from there.
    """
    order = (0, *range(2, strip.dim()), 1)
    lying = strip.permute(order)
    kernel = _kernel() if strip.is_cuda else None
    if kernel is not None and strip.shape[0] == 1 and lying.is_contiguous():
        sums, raised = kernel(lying.view(-1, strip.shape[1]))
        return sums[None], raised[None]
    axes = range(2, strip.dim())
    # One axis first, the outermost in memory: many sums side by side need no scratch.
    first = max(axes, key=strip.stride) if strip.stride(1) == 1 else strip.dim() - 1
    rest = tuple(axis for axis in axes if axis != first)
    sums = torch.sum(strip, first, keepdim=True, dtype=torch.float32)
    norms = torch.linalg.vector_norm(strip, 2, first, keepdim=True, dtype=torch.float32)
    raised = norms.double().square()
    both = (sums.double(), raised)
    made = [each.sum(rest, keepdim=True) if rest else each for each in both]
    return made[0].view(strip.shape[:2]), made[1].view(strip.shape[:2])


@cache
def _kernel() -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None:
    """The quick way, where Triton is."""
    try:
        from tightfit.run.strips.moments_kernel import sums_of
    except ImportError:
        return None
    return sums_of


def _merged(strips: Sequence[Sequence[torch.Tensor]], groups: int) -> torch.Tensor:
    counts, means, squares = (torch.stack(each) for each in zip(*strips, strict=True))
    items, channels = means.shape[1:]
    flat = [
        each.view(-1, items, groups, channels // groups).permute(1, 2, 0, 3).flatten(2)
        for each in (counts, means, squares)
    ]
    count, mean, square = flat
    total = count.sum(2, keepdim=True)
    center = (mean * count).sum(2, keepdim=True) / total
    spread = (square + count * (mean - center).square()).sum(2, keepdim=True) / total
    both = torch.stack([center, spread]).expand(2, items, groups, channels // groups)
    return both.reshape(2, items, channels).float()


def _applied(
    source: torch.Tensor,
    told: torch.Tensor,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    epsilon: float,
) -> torch.Tensor:
    items, channels = source.shape[:2]
    wide = source.dtype if source.dtype == torch.float64 else torch.float32
    mean, variance = told.to(wide).flatten(1)
    scale, shift = (None if p is None else p.to(wide).repeat(items) for p in (scale, shift))
    flat = source if items == 1 else source.reshape(1, items * channels, *source.shape[2:])
    made = functional.batch_norm(flat, mean, variance, scale, shift, eps=epsilon)
    return made if items == 1 else made.view(source.shape)
