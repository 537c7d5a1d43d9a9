"""How far each operator sees, and how it is run on some rows.

A rule looks at one node of a graph and says which rows of what it reads it needs for some rows of
what it makes. An operator without a rule, or one whose arguments no rule knows, is run on all rows
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tightfit.plan.strips.reach import SAME
from tightfit.run.strips import other_axes, reordering, windows
from tightfit.run.strips.part import Need, Part
from tightfit.run.strips.seen import Seen, Shape, as_it_is

Rule = Callable[[Seen], Part | None]

_LIKE = frozenset(
    ("_to_copy", "clone", "detach", "alias", "zeros_like", "ones_like", "full_like", "lift_fresh")
)


RULES: Mapping[str, Rule] = {
    "permute": reordering.permute,
    "transpose": reordering.transpose,
    "t": reordering.transpose,
    "unsqueeze": reordering.unsqueeze,
    "squeeze": reordering.squeeze,
    "view": reordering.view,
    "_unsafe_view": reordering.view,
    "reshape": reordering.view,
    "expand": reordering.expand,
    "repeat": reordering.repeat,
    "slice": reordering.sliced,
    "select": reordering.select,
    "split": reordering.split,
    "split_with_sizes": reordering.split,
    "chunk": reordering.split,
    "unbind": reordering.unbind,
    "cat": reordering.join,
    "stack": reordering.join,
    "constant_pad_nd": windows.pad,
    "replication_pad1d": windows.pad,
    "replication_pad2d": windows.pad,
    "replication_pad3d": windows.pad,
    "reflection_pad1d": windows.pad,
    "reflection_pad2d": windows.pad,
    "reflection_pad3d": windows.pad,
    "convolution": windows.convolution,
    "avg_pool1d": windows.pool,
    "avg_pool2d": windows.pool,
    "avg_pool3d": windows.pool,
    "upsample_nearest1d": windows.nearest,
    "upsample_nearest2d": windows.nearest,
    "upsample_nearest3d": windows.nearest,
    "_upsample_nearest_exact1d": windows.nearest,
    "_upsample_nearest_exact2d": windows.nearest,
    "_upsample_nearest_exact3d": windows.nearest,
    "pixel_shuffle": windows.shuffle,
    "pixel_unshuffle": windows.shuffle,
    "mean": other_axes.reduction,
    "sum": other_axes.reduction,
    "var": other_axes.reduction,
    "amax": other_axes.reduction,
    "amin": other_axes.reduction,
    "linalg_vector_norm": other_axes.reduction,
    "_softmax": other_axes.along,
    "_log_softmax": other_axes.along,
    "cumsum": other_axes.along,
    "normalize": other_axes.normalize,
    "layer_norm": other_axes.last_axes,
    "rms_norm": other_axes.last_axes,
    "batch_norm": other_axes.channels,
    "linear": other_axes.linear,
    "mm": other_axes.product,
    "addmm": other_axes.product,
    "bmm": other_axes.product,
    "attention": other_axes.attention,
}


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
    return None if needs is None else seen.part(needs, axis, as_it_is(seen))


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
