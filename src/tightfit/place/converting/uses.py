"""When copies of converted weights are in use, and where each lies so that none is in the way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tightfit.place.streaming.layout import ALIGNMENT, Layout
from tightfit.weigh.conversions import Converted, Layer
from tightfit.weigh.paths import holds, upwards


@dataclass(frozen=True, eq=False)
class Use:
    """One layer, and the calls that its weights are there for.

    Attributes:
        layer: whose weights.
        anchors: paths of the modules at whose calls they have to be converted.
        head: the anchor whose call covers every use.
        weights: of the layer, each object once.
        shapes: of the same, on the meta device: what they were while they were on the host.
    """

    layer: Layer
    anchors: tuple[str, ...]
    head: str
    weights: tuple[Converted, ...]
    shapes: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, layer: Layer, anchors: Iterable[str], head: str) -> Use:
        """While the weights are on the host."""
        found = {id(each.tensor): each for each in layer.weights}
        shapes = [
            torch.empty_like(each.tensor, device="meta", requires_grad=False)
            for each in found.values()
        ]
        return cls(layer, tuple(anchors), head, tuple(found.values()), tuple(shapes))

    def dtypes(self, dtype: torch.dtype) -> tuple[torch.dtype, ...]:
        """Of each weight, what it is used in where the call computes in `dtype`."""
        both = zip(self.weights, self.shapes, strict=True)
        return tuple(weight.used_in(dtype, shape.dtype) for weight, shape in both)

    def needs_copy(self, dtype: torch.dtype) -> tuple[bool, ...]:
        """Of each weight, whether it has to be converted for such calls."""
        both = zip(self.dtypes(dtype), self.shapes, strict=True)
        return tuple(used != shape.dtype for used, shape in both)

    def layout(self, dtype: torch.dtype) -> Layout:
        """Of the copies, for those of `weights` that need one."""
        both = zip(self.dtypes(dtype), self.shapes, strict=True)
        return Layout.of(
            torch.empty_like(shape, dtype=used) for used, shape in both if used != shape.dtype
        )


@dataclass(frozen=True)
class Room:
    """Where copies lie.

    Attributes:
        starts, ends: for each layer by its name, bytes [start, end) of one buffer.
        bytes: that it has to have.
    """

    starts: Mapping[str, int]
    ends: Mapping[str, int]
    bytes: int


def uses_of(layers: Iterable[Layer], foreign: Mapping[str, Iterable[str]]) -> tuple[Use, ...]:
    """The uses of `layers`, whose weights are on the host.

    `foreign` tells, for tensors that are used while their owner is not called, what is called: by
    paths, as `tightfit.place.streaming.groups.Scan` has them.
    """
    found = []
    for layer in layers:
        head, anchors = layer.name, [layer.name]
        for each in layer.weights:
            for unit in foreign.get(each.held.path, ()):
                if not any(holds(anchor, unit) for anchor in anchors):
                    anchors.append(unit)
                    head = unit if holds(unit, head) else head
        found.append(Use.of(layer, anchors, head))
    return tuple(found)


def room_of(uses: Sequence[Use], dtype: torch.dtype) -> Room:
    """Layers that are called one after another share their bytes; one within another does not."""
    beside = _beside(uses)
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for at, use in enumerate(uses):
        taken = sorted((starts[other], ends[other]) for other in beside[at] if other in starts)
        size = -(-use.layout(dtype).bytes // ALIGNMENT) * ALIGNMENT
        start = 0
        for first, last in taken:
            if start + size <= first:
                break
            start = max(start, last)
        starts[at], ends[at] = start, start + size
    names = [use.layer.name for use in uses]
    return Room(
        {names[at]: start for at, start in starts.items()},
        {names[at]: end for at, end in ends.items()},
        max(ends.values(), default=0),
    )


def _beside(uses: Sequence[Use]) -> dict[int, set[int]]:
    """For each use, those that are under way while it is: a call of one lies within the other's."""
    at_anchor: dict[str, list[int]] = defaultdict(list)
    for at, use in enumerate(uses):
        for anchor in use.anchors:
            at_anchor[anchor].append(at)
    found: dict[int, set[int]] = defaultdict(set)
    for anchor, here in at_anchor.items():
        above = {at for path in upwards(anchor) for at in at_anchor.get(path, ())}
        for at in here:
            for other in above - {at}:
                found[at].add(other)
                found[other].add(at)
    return found
