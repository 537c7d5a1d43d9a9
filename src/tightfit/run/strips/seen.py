"""A node of a graph among its surroundings, as rules look at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tightfit.plan.strips.network import Kind
from tightfit.plan.strips.reach import SAME
from tightfit.run.strips.part import Need, Part, Run, Span
from tightfit.weigh.network.graph import Graph, Node, filled

Shape = tuple[int, ...]


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


def as_list(result: Any) -> list[torch.Tensor]:
    """What an operator made, without what is no tensor."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [one for one in result if isinstance(one, torch.Tensor)]


def as_it_is(seen: Seen) -> Run:
    """The operator itself, called on what it is given."""

    def run(
        tensors: Sequence[torch.Tensor], rows: Span, given: Sequence[Span]
    ) -> Sequence[torch.Tensor]:
        del rows, given
        return as_list(seen.called(tensors))

    return run


def same_rows(seen: Seen, axis: int | None = None) -> Part | None:
    """The first value's rows are those of the result, along `axis` of it."""
    if seen.axis is None:
        return None
    needs = seen.others(Need(seen.source, seen.axis, SAME))
    if any(need.value in seen.axes for need in needs[1:]):
        return None
    return seen.part(needs, seen.axis if axis is None else axis, as_it_is(seen))


def positive(dim: int, shape: Shape) -> int:
    """An axis that may have been counted from the last, from the first."""
    return dim % len(shape) if shape else 0
