"""Rules of operators that give the same values in another order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tightfit.plan.strips.reach import SAME, Reach
from tightfit.run.strips.part import Need, Part, Span
from tightfit.run.strips.seen import Seen, Shape, as_it_is, positive, same_rows


def permute(seen: Seen) -> Part | None:
    """Rows are where their axis went."""
    axis, shape = seen.axis, seen.shape(seen.source)
    if axis is None:
        return None
    order = [positive(dim, shape) for dim in seen.argument(1)]
    return same_rows(seen, order.index(axis))


def transpose(seen: Seen) -> Part | None:
    """Rows are where their axis went."""
    axis, shape = seen.axis, seen.shape(seen.source)
    if axis is None:
        return None
    one, two = (0, 1) if seen.node.name == "t" else (seen.argument(1), seen.argument(2))
    one, two = positive(one, shape), positive(two, shape)
    return same_rows(seen, {one: two, two: one}.get(axis, axis))


def unsqueeze(seen: Seen) -> Part | None:
    """Rows are one axis further, or where they were."""
    if seen.axis is None:
        return None
    at = seen.argument(1) % len(seen.made)
    return same_rows(seen, seen.axis + (at <= seen.axis))


def squeeze(seen: Seen) -> Part | None:
    """An axis of one goes, which is not that of the rows."""
    axis, shape = seen.axis, seen.shape(seen.source)
    dims = seen.argument(1)
    if axis is None or dims is None:
        return None
    gone = [positive(dim, shape) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]
    gone = [dim for dim in gone if shape[dim] == 1]
    if axis in gone:
        return None
    return same_rows(seen, axis - sum(dim < axis for dim in gone))


def view(seen: Seen) -> Part | None:
    """Rows stay rows, or are parted, or are one with what follows."""
    if seen.axis is None:
        return None
    found = _followed(seen.shape(seen.source), seen.axis, seen.made)
    if found is None:
        return None
    axis, reach = found
    shape = seen.made

    def run(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        (begin, end), (low, high) = rows, given[0]
        length = (high - low) * reach.down // reach.up
        made = tensors[0].reshape((*shape[:axis], length, *shape[axis + 1 :]))
        offset = low * reach.down // reach.up
        return [made.narrow(axis, begin - offset, end - begin)]

    return seen.part([Need(seen.source, seen.axis, reach)], axis, run)


def _followed(old: Shape, axis: int, new: Shape) -> tuple[int, Reach] | None:
    """Where rows are after a change of shape: alone, parted, or one with what follows."""
    before = math.prod(old[:axis])
    rows = old[axis]
    candidates = [at for at in range(len(new)) if math.prod(new[:at]) == before]
    for at in candidates:
        if new[at] == rows:
            return at, SAME
    for at in candidates:
        behind = 1
        for length in new[at + 1 :]:
            behind *= length
            if new[at] > 1 and new[at] * behind == rows:
                return at, Reach(up=behind)
        behind = 1
        for length in old[axis + 1 :]:
            behind *= length
            if rows * behind == new[at]:
                return at, Reach(down=behind)
    return None


def expand(seen: Seen) -> Part | None:
    """Other axes get longer."""
    if seen.axis is None:
        return None
    axis = seen.axis + len(seen.made) - len(seen.shape(seen.source))
    if seen.made[axis] != seen.shape(seen.source)[seen.axis]:
        return None
    sizes = [*seen.made[:axis], -1, *seen.made[axis + 1 :]]

    def run(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        del rows, given
        return [tensors[0].expand(sizes)]

    return seen.part([Need(seen.source, seen.axis, SAME)], axis, run)


def repeat(seen: Seen) -> Part | None:
    """Other axes are repeated."""
    if seen.axis is None:
        return None
    times = seen.argument(1)
    axis = seen.axis + len(seen.made) - len(seen.shape(seen.source))
    return same_rows(seen, axis) if times[axis] == 1 else None


def sliced(seen: Seen) -> Part | None:
    """Some rows of the source, or some of another axis."""
    axis, shape = seen.axis, seen.shape(seen.source)
    if axis is None:
        return None
    dim = positive(seen.argument(1, 0), shape)
    if dim != axis:
        return same_rows(seen)
    step = seen.argument(4, 1)
    start = seen.argument(2) or 0
    start = min(max(start + shape[dim] if start < 0 else start, 0), shape[dim])
    reach = Reach(up=step, before=-start, after=start - (step - 1))

    def run(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        first = rows[0] * step + start - given[0][0]
        picked = tensors[0].narrow(axis, first, (rows[1] - rows[0] - 1) * step + 1)
        index = [slice(None)] * len(shape)
        index[axis] = slice(None, None, step)
        return [picked[tuple(index)]]

    return seen.part([Need(seen.source, axis, reach)], axis, run)


def select(seen: Seen) -> Part | None:
    """One of another axis."""
    if seen.axis is None:
        return None
    dim = positive(seen.argument(1), seen.shape(seen.source))
    return None if dim == seen.axis else same_rows(seen, seen.axis - (dim < seen.axis))


def split(seen: Seen) -> Part | None:
    """Parts of another axis."""
    dim = positive(seen.argument(2, 0), seen.shape(seen.source))
    return None if dim == seen.axis else same_rows(seen)


def unbind(seen: Seen) -> Part | None:
    """Each of another axis."""
    if seen.axis is None:
        return None
    dim = positive(seen.argument(1, 0), seen.shape(seen.source))
    return None if dim == seen.axis else same_rows(seen, seen.axis - (dim < seen.axis))


def join(seen: Seen) -> Part | None:
    """Along another axis."""
    stacked = seen.node.name == "stack"
    axes = {seen.axes[value] for value in seen.node.reads if value in seen.axes}
    if len(axes) != 1:
        return None
    axis = axes.pop()
    dim = seen.argument(1, 0) % len(seen.made)
    if dim == axis and not stacked:
        return None
    rows = next(seen.shape(v)[axis] for v in seen.node.reads if v in seen.axes)
    if any(len(seen.shape(v)) <= axis or seen.shape(v)[axis] != rows for v in seen.node.reads):
        return None
    needs = [Need(value, axis, SAME) for value in seen.node.reads]
    return seen.part(needs, axis + (stacked and dim <= axis), as_it_is(seen))
