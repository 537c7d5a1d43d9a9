"""Rules of operators that look at rows beside a row, and at edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from tightfit.plan.strips.reach import Reach
from tightfit.run.strips.part import Need, Part, Span
from tightfit.run.strips.seen import Seen, as_it_is, same_rows


def pad(seen: Seen) -> Part | None:
    """What is at the edge is made where a strip has it."""
    axis, shape = seen.axis, seen.shape(seen.source)
    if axis is None:
        return None
    sides = list(seen.argument(1))
    at = 2 * (len(shape) - 1 - axis)
    top, bottom = (sides[at], sides[at + 1]) if at < len(sides) else (0, 0)
    if top < 0 or bottom < 0:
        return None
    rest = [0 if place in (at, at + 1) else size for place, size in enumerate(sides)]
    mode = seen.node.name
    reach = Reach(before=top, after=-top)
    if mode.startswith("reflection"):
        reach = Reach(before=top + 2 * bottom, after=top)
    rows_in = shape[axis]
    fill = seen.argument(2, 0)

    def run(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        (begin, end), (low, _), strip = rows, given[0], tensors[0]
        above = max(0, min(end, top) - begin)
        below = max(0, end - max(begin, rows_in + top))
        every = list(rest)
        if above or below:
            every[at : at + 2] = [above, below]
        if mode == "constant_pad_nd":
            strip = strip.narrow(axis, 0, end - begin - above - below)
            return [functional.pad(strip, every, value=fill) if any(every) else strip]
        if mode.startswith("replication"):
            made = seen.node.func(strip, every) if any(every) else strip
            return [made.narrow(axis, 0, end - begin)]
        if top or bottom:
            wanted = [_folded(row - top, rows_in) - low for row in range(begin, end)]
            if wanted != list(range(strip.shape[axis])):
                index = torch.tensor(wanted, device=strip.device)
                strip = strip.index_select(axis, index)
        return [seen.node.func(strip, rest) if any(rest) else strip]

    return seen.part([Need(seen.source, axis, reach)], axis, run)


def _folded(row: int, rows: int) -> int:
    """The row that is reflected at `row`, which may lie outside."""
    row = abs(row)
    return row if row < rows else 2 * (rows - 1) - row


def convolution(seen: Seen) -> Part | None:
    """Rows see as far as the kernel; those at the edge see padding."""
    shape = seen.shape(seen.source)
    weight = seen.shape(seen.node.reads[1])
    _, _, _, stride, padding, dilation, transposed, extra, groups = seen.node.args
    if len(shape) != len(weight):
        return None
    axis = seen.axis
    if axis is None:
        axis = len(shape) - min(seen.from_end, len(shape) - 2)
    if axis == 0:
        return same_rows(seen)
    if axis == 1 or any(value in seen.axes for value in seen.node.reads[1:]):
        return None
    at = axis - 2
    pick = [values[at if len(values) > 1 else 0] for values in (stride, padding, dilation)]
    step, edge, apart = pick
    size = weight[axis]
    spread = (size - 1) * apart
    rows_in, rows_out = shape[axis], seen.made[axis]
    both = [list(padding) * (len(shape) - 2) if len(padding) == 1 else list(padding)][0]
    without = [0 if place == at else one for place, one in enumerate(both)]
    head, tail = seen.node.args[:3], (dilation, False, extra, groups)

    if transposed:
        ends = list(extra) * (len(shape) - 2) if len(extra) == 1 else list(extra)
        before = -(-max(spread - edge, 0) // step)
        gap = max(0, step - 1 - spread)  # rows behind a window that nothing reaches
        reach = Reach(down=step, before=before, after=-(-(edge + gap) // step))

        def backwards(
            tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
        ) -> Sequence[torch.Tensor]:
            (begin, end), (low, high) = rows, given[0]
            more = [0 if place == at and high < rows_in else n for place, n in enumerate(ends)]
            args = (*head, stride, without, dilation, True, more, groups)
            made = seen.called(tensors, args)
            return [made.narrow(axis, begin - (low * step - edge), end - begin)]

        more = (before + reach.after + 2) * step + spread
        part = seen.part(seen.others(Need(seen.source, axis, reach)), axis, backwards)
        return replace(part, spare=(more, more))

    reach = Reach(up=step, before=edge, after=spread + 1 - step - edge)

    def run(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        begin, end = rows
        low = begin * step - edge
        above = max(0, -low)
        below = max(0, (end - 1) * step + spread + 1 - edge - rows_in)
        if not above and not below:
            return [seen.called(tensors, (*head, stride, without, *tail))]
        if step == 1 or above == below == edge:
            made = seen.called(tensors, (*head, stride, both, *tail))
            first = 0 if above else rows_out - made.shape[axis]
            return [made.narrow(axis, begin - first, end - begin)]
        sides = [0, 0] * (len(shape) - 1 - axis) + [above, below]
        padded = functional.pad(tensors[0], sides)
        beyond = max(0, low - given[0][0])  # where a window sees nothing but padding
        padded = padded.narrow(axis, beyond, padded.shape[axis] - beyond)
        made = seen.called([padded, *tensors[1:]], (*head, stride, without, *tail))
        return [made.narrow(axis, 0, end - begin)]

    part = seen.part(seen.others(Need(seen.source, axis, reach)), axis, run)
    return replace(part, spare=(0, 2 * edge if step == 1 else 0))


def pool(seen: Seen) -> Part | None:
    """Rows see what is pooled; nothing is padded."""
    axis = seen.axis
    if axis is None or axis < 2:
        return None
    at = axis - 2
    sizes = seen.argument(1)
    steps = seen.argument(2) or sizes
    edges = seen.argument(3) or [0]
    if any(edges) or seen.argument(4):
        return None
    size, step = (one[at if len(one) > 1 else 0] for one in (sizes, steps))
    reach = Reach(up=step, after=size - step)
    return seen.part([Need(seen.source, axis, reach)], axis, as_it_is(seen))


def nearest(seen: Seen) -> Part | None:
    """Each row is there several times."""
    axis, shape, made = seen.axis, seen.shape(seen.source), seen.made
    if axis is None or axis < 2 or made[axis] % shape[axis]:
        return None
    times = made[axis] // shape[axis]
    mode = "nearest-exact" if "exact" in seen.node.name else "nearest"

    def run(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        (begin, end), (low, high) = rows, given[0]
        sizes = list(made[2:])
        sizes[axis - 2] = (high - low) * times
        larger = functional.interpolate(tensors[0], size=sizes, mode=mode)
        return [larger.narrow(axis, begin - low * times, end - begin)]

    part = seen.part([Need(seen.source, axis, Reach(down=times))], axis, run)
    return replace(part, spare=(2 * (times - 1), times - 1))


def shuffle(seen: Seen) -> Part | None:
    """Rows are made of channels, or channels of rows."""
    axis, times = seen.axis, seen.argument(1)
    if axis is None or axis != len(seen.made) - 2:
        return None
    if seen.node.name == "pixel_unshuffle":
        need = Need(seen.source, axis, Reach(up=times))
        return seen.part([need], axis, as_it_is(seen))

    def run(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        made = seen.called(tensors)
        return [made.narrow(axis, rows[0] - given[0][0] * times, rows[1] - rows[0])]

    part = seen.part([Need(seen.source, axis, Reach(down=times))], axis, run)
    return replace(part, spare=(2 * (times - 1), times - 1))
