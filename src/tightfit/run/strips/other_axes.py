"""Rules of operators that work along other axes than that of the rows."""

from __future__ import annotations

from dataclasses import replace

from tightfit.plan.strips.reach import SAME
from tightfit.run.strips.part import Need, Part
from tightfit.run.strips.seen import Seen, as_it_is, positive, same_rows


def reduction(seen: Seen) -> Part | None:
    """Over other axes."""
    axis, shape = seen.axis, seen.shape(seen.source)
    at = 2 if seen.node.name == "linalg_vector_norm" else 1
    dims = seen.argument(at)
    if axis is None or dims is None or dims == []:
        return None
    gone = [positive(dim, shape) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]
    if axis in gone:
        return None
    kept = len(seen.made) == len(shape)
    return same_rows(seen, axis if kept else axis - sum(dim < axis for dim in gone))


def along(seen: Seen) -> Part | None:
    """Along another axis."""
    dim = positive(seen.argument(1), seen.shape(seen.source))
    return None if dim == seen.axis else same_rows(seen)


def normalize(seen: Seen) -> Part | None:
    """Along another axis."""
    dim = positive(seen.argument(2), seen.shape(seen.source))
    return None if dim == seen.axis else same_rows(seen)


def last_axes(seen: Seen) -> Part | None:
    """Over the last axes, none of which is that of the rows."""
    axis, shape = seen.axis, seen.shape(seen.source)
    inside = len(shape) - len(seen.argument(1))
    return None if axis is None or axis >= inside else same_rows(seen)


def channels(seen: Seen) -> Part | None:
    """By channel."""
    return None if seen.axis == 1 else same_rows(seen)


def linear(seen: Seen) -> Part | None:
    """Over the last axis."""
    return None if seen.axis == len(seen.shape(seen.source)) - 1 else same_rows(seen)


def product(seen: Seen) -> Part | None:
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
    return seen.part(needs, axis, as_it_is(seen))


def attention(seen: Seen) -> Part | None:
    """Queries in strips; keys and values are there at once."""
    query, key, value, *more = seen.node.reads
    axis, shape = seen.axes.get(query), seen.shape(query)
    if axis is None or seen.argument(5):
        return None
    if axis < len(shape) - 2:
        if any(seen.axes.get(one) != axis for one in (key, value)) or more:
            return None
        needs = [Need(one, axis, SAME) for one in (query, key, value)]
        return replace(seen.part(needs, axis, as_it_is(seen)), weight=seen.shape(value))
    if axis != len(shape) - 2:
        return None
    needs = [Need(query, axis, SAME), Need(key), Need(value)]
    for mask in more:
        told = seen.shape(mask)
        at = len(told) - 2
        needs.append(Need(mask, at, SAME) if told[at] == shape[axis] else Need(mask))
    return replace(seen.part(needs, axis, as_it_is(seen)), weight=seen.shape(value))
