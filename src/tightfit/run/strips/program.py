"""A graph as parts that strips can run, and the same as numbers for the planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tightfit.plan.strips.network import Extent, Kind, Network, Step, Use
from tightfit.run.strips.group_norm import halves, statistics_shape
from tightfit.run.strips.part import Need, Part, Span
from tightfit.run.strips.rules import rule_for
from tightfit.run.strips.scratch import Scratch
from tightfit.run.strips.seen import Seen, as_list
from tightfit.weigh.network.graph import Graph, Node, filled


@dataclass(frozen=True)
class Program:
    """Parts in the order of the graph.

    Attributes:
        graph: what it was made from.
        parts: one or two for each node.
        network: the same as numbers.
        axes: value → along which axis its rows lie.
        shapes, dtypes: of every value, those between two halves included.
        gathered: names of operators that have to see all rows at once, but for views.
    """

    graph: Graph
    parts: tuple[Part, ...]
    network: Network
    axes: dict[int, int]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    gathered: tuple[str, ...]


def programmed(
    graph: Graph,
    *,
    from_end: int,
    device: torch.device,
    scratch: Scratch,
) -> Program:
    """The parts of `graph`, whose input is cut along the axis `from_end` from its end.

    What is made from nothing is made on `device`. `scratch` tells of a part, with the bytes of
    what it reads first and of what it makes, how many it takes beside for each of those.
    """
    values = graph.values
    shapes = [value.shape for value in values]
    dtypes = [value.dtype for value in values]
    axes = {graph.given: len(shapes[graph.given]) - from_end}
    parts: list[Part] = []
    gathered: dict[str, None] = {}
    for node in graph.nodes:
        if node.constant:
            parts.append(_whole(node, Kind.CONSTANT, device))
            continue
        seen = Seen(graph, node, axes, from_end)
        if node.name == "group_norm":
            found = halves(seen, len(shapes))
            if found is not None:
                parts += found
                shapes.append(statistics_shape(shapes[seen.source]))
                dtypes.append(torch.float32)
                axes[found[1].makes[0]] = seen.axes[seen.source]
                continue
        part = rule_for(seen)
        if part is None:
            second = shapes[node.reads[1]] if len(node.reads) > 1 else ()
            part = _whole(node, Kind.WHOLE, device, second)
            if not _is_view(graph, part) and any(value in axes for value in node.reads):
                gathered[node.name] = None
        parts.append(part)
        if part.axis is not None:
            axes.update(dict.fromkeys(part.makes, part.axis))
    network = _network(graph, parts, axes, shapes, dtypes, scratch)
    return Program(
        graph, tuple(parts), network, axes, tuple(shapes), tuple(dtypes), tuple(gathered)
    )


def _is_view(graph: Graph, part: Part) -> bool:
    read = {graph.values[need.value].storage for need in part.needs}
    return all(graph.values[value].storage in read for value in part.makes)


def _whole(node: Node, kind: Kind, device: torch.device, weight: tuple[int, ...] = ()) -> Part:
    makes = tuple(number for number in node.makes if number is not None)

    def run(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        del rows, given
        each = iter(tensors)
        args = filled(node.args, lambda _: next(each))
        kwargs = {
            key: device if key == "device" else filled(value, lambda _: next(each))
            for key, value in node.kwargs.items()
        }
        return as_list(node.func(*args, **kwargs))

    needs = tuple(Need(value) for value in node.reads)
    return Part(node.name, kind, needs, makes, None, run, None, node.flops, weight)


def _network(
    graph: Graph,
    parts: Sequence[Part],
    axes: dict[int, int],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
    scratch: Scratch,
) -> Network:
    values = graph.values
    extents = []
    for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        elements = torch.Size(shape).numel()
        axis = axes.get(number)
        rows = 0 if axis is None else shape[axis]
        memory = values[number].storage if number < len(values) else -1 - number
        extents.append(Extent(elements * dtype.itemsize, rows, memory, elements))
    steps = []
    for part in parts:
        uses = tuple(
            Use(need.value, need.reach if need.value in axes else None)
            for need in part.needs
            if need.value >= len(values) or values[need.value].weight is None
        )
        made = sum(extents[number].bytes for number in part.makes)
        read = extents[part.needs[0].value].bytes if part.needs else 0
        beside = scratch(part, read, made) if part.kind is not Kind.SUMS else 0.0
        steps.append(Step(part.kind, uses, part.makes, beside, part.flops, part.spare))
    return Network(tuple(steps), tuple(extents), graph.given, graph.result)
