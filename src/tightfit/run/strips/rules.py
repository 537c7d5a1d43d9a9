"""How far each operator sees, and how it is run on some rows.

A rule looks at one node of a graph and says which rows of what it reads it needs for some rows of
what it makes. An operator without a rule, or one whose arguments no rule knows, is run on all rows
at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from tightfit.plan.strips.network import Kind
from tightfit.plan.strips.reach import SAME, Reach
from tightfit.run.strips.part import Need, Part, Run, Span
from tightfit.weigh.network.graph import Graph, Node, filled

Shape = tuple[int, ...]
Rule = Callable[["Seen"], Part | None]

_LIKE = frozenset(
    ("_to_copy", "clone", "detach", "alias", "zeros_like", "ones_like", "full_like", "lift_fresh")
)


@dataclass(frozen=True)
class Seen:
    """A node among its surroundings.

    Attributes:
        graph: that it is of.
        node: itself.
        axes: value → along which axis its rows lie, for those that have some.
        from_end: the axis to cut where nothing says which, counted from the last (1 is the last).
    """

    graph: Graph
    node: Node
    axes: Mapping[int, int]
    from_end: int

    def shape(self, value: int) -> Shape:
        """Of a value."""
        return self.graph.values[value].shape

    @property
    def made(self) -> Shape:
        """The shape of the first thing it makes."""
        first = next(number for number in self.node.makes if number is not None)
        return self.shape(first)

    @property
    def source(self) -> int:
        """The first value that it reads."""
        return self.node.reads[0]

    @property
    def axis(self) -> int | None:
        """Of the first value that it reads."""
        return self.axes.get(self.source)

    def argument(self, at: int, default: Any = None) -> Any:
        """By position."""
        return self.node.args[at] if at < len(self.node.args) else default

    def part(self, needs: Sequence[Need], axis: int | None, run: Run) -> Part:
        """A local part."""
        makes = tuple(number for number in self.node.makes if number is not None)
        weights = [n for n in self.node.reads[1:] if self.graph.values[n].weight is not None]
        weight = self.shape(weights[0]) if weights else ()
        return Part(
            self.node.name,
            Kind.LOCAL,
            tuple(needs),
            makes,
            axis,
            run,
            None,
            self.node.flops,
            weight,
        )

    def others(self, first: Need) -> list[Need]:
        """`first`, and everything else as it is."""
        return [first, *(Need(value) for value in self.node.reads[1:])]

    def called(self, tensors: Sequence[torch.Tensor], args: tuple[Any, ...] | None = None) -> Any:
        """Call the operator, with `tensors` where it was given tensors."""
        given, node = iter(tensors), self.node
        args = filled(node.args if args is None else args, lambda _: next(given))
        if not node.kwargs:
            return node.func(*args)
        kwargs = {
            key: filled(value, lambda _: next(given))
            for key, value in node.kwargs.items()
            if key != "device"
        }
        return node.func(*args, **kwargs)


def rule_for(seen: Seen) -> Part | None:
    """The part that `seen` is; None where it has to see all rows at once."""
    node = seen.node
    rule = RULES.get(node.name)
    if rule is None and (node.name in _LIKE or _is_pointwise(node.func)):
        rule = _pointwise
    if rule is None:
        return None
    if node.name != "convolution" and not any(value in seen.axes for value in node.reads):
        return None
    return rule(seen)


def as_list(result: Any) -> list[torch.Tensor]:
    """What an operator made, without what is no tensor."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [one for one in result if isinstance(one, torch.Tensor)]


def _is_pointwise(func: Any) -> bool:
    return torch.Tag.pointwise in getattr(func, "tags", ())


def _pointwise(seen: Seen) -> Part | None:
    made = seen.made
    ends = {len(seen.shape(value)) - seen.axes[value] for value in seen.node.reads
            if value in seen.axes}  # fmt: skip
    if len(ends) != 1:
        return None
    axis = len(made) - ends.pop()
    needs = _aligned(seen, seen.node.reads, made, axis)
    return None if needs is None else seen.part(needs, axis, _as_it_is(seen))


def _aligned(seen: Seen, reads: Sequence[int], made: Shape, axis: int) -> list[Need] | None:
    """Needs of what is broadcast together, the last axes to each other."""
    needs = []
    for value in reads:
        shape = seen.shape(value)
        at = axis - len(made) + len(shape)
        if at < 0 or (shape[at] == 1 and made[axis] != 1):
            if value in seen.axes:
                return None
            needs.append(Need(value))
        else:
            needs.append(Need(value, at, SAME))
    return needs


def _as_it_is(seen: Seen) -> Run:
    def run(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        del rows, given
        return as_list(seen.called(tensors))

    return run


def _same_rows(seen: Seen, axis: int | None = None) -> Part | None:
    """The first value's rows are those of the result, along `axis` of it."""
    if seen.axis is None:
        return None
    needs = seen.others(Need(seen.source, seen.axis, SAME))
    if any(need.value in seen.axes for need in needs[1:]):
        return None
    return seen.part(needs, seen.axis if axis is None else axis, _as_it_is(seen))


def _positive(dim: int, shape: Shape) -> int:
    return dim % len(shape) if shape else 0


# --- the same values in another order ---


def _permute(seen: Seen) -> Part | None:
    axis, shape = seen.axis, seen.shape(seen.source)
    if axis is None:
        return None
    order = [_positive(dim, shape) for dim in seen.argument(1)]
    return _same_rows(seen, order.index(axis))


def _transpose(seen: Seen) -> Part | None:
    axis, shape = seen.axis, seen.shape(seen.source)
    if axis is None:
        return None
    one, two = (0, 1) if seen.node.name == "t" else (seen.argument(1), seen.argument(2))
    one, two = _positive(one, shape), _positive(two, shape)
    return _same_rows(seen, {one: two, two: one}.get(axis, axis))


def _unsqueeze(seen: Seen) -> Part | None:
    if seen.axis is None:
        return None
    at = seen.argument(1) % len(seen.made)
    return _same_rows(seen, seen.axis + (at <= seen.axis))


def _squeeze(seen: Seen) -> Part | None:
    axis, shape = seen.axis, seen.shape(seen.source)
    dims = seen.argument(1)
    if axis is None or dims is None:
        return None
    gone = [_positive(dim, shape) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]
    gone = [dim for dim in gone if shape[dim] == 1]
    if axis in gone:
        return None
    return _same_rows(seen, axis - sum(dim < axis for dim in gone))


def _view(seen: Seen) -> Part | None:
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


def _expand(seen: Seen) -> Part | None:
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


def _repeat(seen: Seen) -> Part | None:
    if seen.axis is None:
        return None
    times = seen.argument(1)
    axis = seen.axis + len(seen.made) - len(seen.shape(seen.source))
    return _same_rows(seen, axis) if times[axis] == 1 else None


def _slice(seen: Seen) -> Part | None:
    axis, shape = seen.axis, seen.shape(seen.source)
    if axis is None:
        return None
    dim = _positive(seen.argument(1, 0), shape)
    if dim != axis:
        return _same_rows(seen)
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


def _select(seen: Seen) -> Part | None:
    if seen.axis is None:
        return None
    dim = _positive(seen.argument(1), seen.shape(seen.source))
    return None if dim == seen.axis else _same_rows(seen, seen.axis - (dim < seen.axis))


def _split(seen: Seen) -> Part | None:
    dim = _positive(seen.argument(2, 0), seen.shape(seen.source))
    return None if dim == seen.axis else _same_rows(seen)


def _unbind(seen: Seen) -> Part | None:
    if seen.axis is None:
        return None
    dim = _positive(seen.argument(1, 0), seen.shape(seen.source))
    return None if dim == seen.axis else _same_rows(seen, seen.axis - (dim < seen.axis))


def _join(seen: Seen) -> Part | None:
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
    return seen.part(needs, axis + (stacked and dim <= axis), _as_it_is(seen))


# --- edges ---


def _pad(seen: Seen) -> Part | None:
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


def _convolution(seen: Seen) -> Part | None:
    shape = seen.shape(seen.source)
    weight = seen.shape(seen.node.reads[1])
    _, _, _, stride, padding, dilation, transposed, extra, groups = seen.node.args
    if len(shape) != len(weight):
        return None
    axis = seen.axis
    if axis is None:
        axis = len(shape) - min(seen.from_end, len(shape) - 2)
    if axis == 0:
        return _same_rows(seen)
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


def _pool(seen: Seen) -> Part | None:
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
    return seen.part([Need(seen.source, axis, reach)], axis, _as_it_is(seen))


def _nearest(seen: Seen) -> Part | None:
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


def _shuffle(seen: Seen) -> Part | None:
    axis, times = seen.axis, seen.argument(1)
    if axis is None or axis != len(seen.made) - 2:
        return None
    if seen.node.name == "pixel_unshuffle":
        need = Need(seen.source, axis, Reach(up=times))
        return seen.part([need], axis, _as_it_is(seen))

    def run(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        made = seen.called(tensors)
        return [made.narrow(axis, rows[0] - given[0][0] * times, rows[1] - rows[0])]

    part = seen.part([Need(seen.source, axis, Reach(down=times))], axis, run)
    return replace(part, spare=(2 * (times - 1), times - 1))


# --- over other axes ---


def _reduction(seen: Seen) -> Part | None:
    axis, shape = seen.axis, seen.shape(seen.source)
    at = 2 if seen.node.name == "linalg_vector_norm" else 1
    dims = seen.argument(at)
    if axis is None or dims is None or dims == []:
        return None
    gone = [_positive(dim, shape) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]
    if axis in gone:
        return None
    kept = len(seen.made) == len(shape)
    return _same_rows(seen, axis if kept else axis - sum(dim < axis for dim in gone))


def _along(seen: Seen) -> Part | None:
    dim = _positive(seen.argument(1), seen.shape(seen.source))
    return None if dim == seen.axis else _same_rows(seen)


def _normalize(seen: Seen) -> Part | None:
    dim = _positive(seen.argument(2), seen.shape(seen.source))
    return None if dim == seen.axis else _same_rows(seen)


def _last_axes(seen: Seen) -> Part | None:
    axis, shape = seen.axis, seen.shape(seen.source)
    inside = len(shape) - len(seen.argument(1))
    return None if axis is None or axis >= inside else _same_rows(seen)


def _channels(seen: Seen) -> Part | None:
    return None if seen.axis == 1 else _same_rows(seen)


def _linear(seen: Seen) -> Part | None:
    return None if seen.axis == len(seen.shape(seen.source)) - 1 else _same_rows(seen)


def _product(seen: Seen) -> Part | None:
    """Rows of the left matrix are rows of the result."""
    left = seen.node.reads[1 if seen.node.name == "addmm" else 0]
    axis = seen.axes.get(left)
    if axis is None or axis == len(seen.shape(left)) - 1:
        return None
    needs = []
    for value in seen.node.reads:
        if value == left:
            needs.append(Need(value, axis, SAME))
        elif value in seen.axes:
            return None
        else:
            needs.append(Need(value))
    if seen.node.name == "bmm" and axis == 0:
        return None
    return seen.part(needs, axis, _as_it_is(seen))


def _attention(seen: Seen) -> Part | None:
    """Queries in strips; keys and values are there at once."""
    query, key, value, *more = seen.node.reads
    axis, shape = seen.axes.get(query), seen.shape(query)
    if axis is None or seen.argument(5):
        return None
    if axis < len(shape) - 2:
        if any(seen.axes.get(one) != axis for one in (key, value)) or more:
            return None
        needs = [Need(one, axis, SAME) for one in (query, key, value)]
        return replace(seen.part(needs, axis, _as_it_is(seen)), weight=seen.shape(value))
    if axis != len(shape) - 2:
        return None
    needs = [Need(query, axis, SAME), Need(key), Need(value)]
    for mask in more:
        told = seen.shape(mask)
        at = len(told) - 2
        needs.append(Need(mask, at, SAME) if told[at] == shape[axis] else Need(mask))
    return replace(seen.part(needs, axis, _as_it_is(seen)), weight=seen.shape(value))


RULES: Mapping[str, Rule] = {
    "permute": _permute,
    "transpose": _transpose,
    "t": _transpose,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "view": _view,
    "_unsafe_view": _view,
    "reshape": _view,
    "expand": _expand,
    "repeat": _repeat,
    "slice": _slice,
    "select": _select,
    "split": _split,
    "split_with_sizes": _split,
    "chunk": _split,
    "unbind": _unbind,
    "cat": _join,
    "stack": _join,
    "constant_pad_nd": _pad,
    "replication_pad1d": _pad,
    "replication_pad2d": _pad,
    "replication_pad3d": _pad,
    "reflection_pad1d": _pad,
    "reflection_pad2d": _pad,
    "reflection_pad3d": _pad,
    "convolution": _convolution,
    "avg_pool1d": _pool,
    "avg_pool2d": _pool,
    "avg_pool3d": _pool,
    "upsample_nearest1d": _nearest,
    "upsample_nearest2d": _nearest,
    "upsample_nearest3d": _nearest,
    "_upsample_nearest_exact1d": _nearest,
    "_upsample_nearest_exact2d": _nearest,
    "_upsample_nearest_exact3d": _nearest,
    "pixel_shuffle": _shuffle,
    "pixel_unshuffle": _shuffle,
    "mean": _reduction,
    "sum": _reduction,
    "var": _reduction,
    "amax": _reduction,
    "amin": _reduction,
    "linalg_vector_norm": _reduction,
    "_softmax": _along,
    "_log_softmax": _along,
    "cumsum": _along,
    "normalize": _normalize,
    "layer_norm": _last_axes,
    "rms_norm": _last_axes,
    "batch_norm": _channels,
    "linear": _linear,
    "mm": _product,
    "addmm": _product,
    "bmm": _product,
    "attention": _attention,
}
