"""Which tensors move as one, and at whose calls they have to be there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tightfit.errors import UsageError
from tightfit.place.streaming.arena import Layout
from tightfit.place.streaming.berths import slot_of
from tightfit.plan.streaming.residency import Residency
from tightfit.weigh.blocks import Block, Weights
from tightfit.weigh.order import Order
from tightfit.weigh.paths import holds, upwards
from tightfit.weigh.shells import Inner, inner_of, is_shell, outer_of, plain, why_unknown
from tightfit.weigh.tally import extent
from tightfit.weigh.tensors import Held, identity, weights

_REACHING = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Modules whose call uses the weights of children that it does not call."""


@dataclass(frozen=True, eq=False)
class Group:
    """The tensors of one piece of a plan.

    Attributes:
        name: of the piece.
        stays: on the card all the time; else it is copied for each use.
        packed: stored in fewer bytes, and unpacked for each use.
        layout: of its tensors in one buffer, ties once.
        held: every place that a tensor of it is held in.
        places: for each of `held`, the index in `layout`.
        anchors: paths of the modules at whose calls it has to be there.
        head: the anchor whose call covers every use of it, if it is called at all.
        ring: groups of one number are not in use at the same time; 0 are the most bytes.
    """

    name: str
    stays: bool
    layout: Layout
    held: tuple[Held, ...]
    places: tuple[int, ...]
    anchors: tuple[str, ...]
    head: str
    ring: int = 0
    packed: bool = False

    @property
    def passes(self) -> bool:
        """Whether it has to be brought for each use: copied, or unpacked."""
        return self.packed or not self.stays


class Scan:
    """The tensors of a module and where they are used, seen once.

    Attributes:
        helds: every place that a tensor is held in; of weights that are more than one tensor,
            what they are made of.
    """

    def __init__(self, module: nn.Module, *, order: Order | None = None) -> None:
        """`order` tells of weights that are used while their owner is not called."""
        self.helds = tuple(inner_of(weights(module)))
        self.foreign = _foreign(module, self.helds, order)

    def groups(
        self,
        residency: Residency,
        blocks: Weights,
        masters: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> tuple[Group, ...]:
        """As `groups_of`, while each tensor may stand for something else than its master.

        What `masters` gives for it need have no values.
        """
        if masters is None:
            for held in self.helds:
                _refuse(held)
            masters = plain
        places = {held.path: held for held in self.helds}
        helds = [replace(held, tensor=masters(held.tensor)) for held in self.helds]
        return tuple(
            replace(group, held=tuple(places[held.path] for held in group.held))
            for group in _groups(helds, self.foreign, residency, blocks)
        )


def groups_of(
    module: nn.Module, residency: Residency, blocks: Weights, *, order: Order | None = None
) -> tuple[Group, ...]:
    """The groups of `module`, one for each piece of `residency` that has tensors, in its order.

    `order` tells of weights that are used while their owner is not called. Raises `UsageError`
    for a plan that is not of this module, and, with the path, for what cannot be streamed.
    """
    return Scan(module, order=order).groups(residency, blocks)


def _groups(
    helds: Sequence[Held],
    foreign: Mapping[str, Iterable[str]],
    residency: Residency,
    blocks: Weights,
) -> tuple[Group, ...]:
    homes = _pieces_of_leaves(residency, blocks)
    members: dict[int, list[Held]] = defaultdict(list)
    found: dict[Any, int] = {}
    for held in helds:
        key = identity(held.tensor)
        if key not in found:
            at = homes.get(held.leaf, -1)
            if at < 0 and held.tensor.nbytes and not _shared(held, helds):
                raise UsageError(
                    f"`{held.path}` is in no piece of the plan, which was made for another module."
                )
            found[key] = at
        members[found[key]].append(held)
    names = [piece.name for piece in residency.pieces]
    packed = [piece.packed for piece in residency.pieces]
    groups = []
    for at in sorted(members):
        stays = at < 0 or residency.stays[at]
        name = "(empty)" if at < 0 else names[at]
        head = _head(name, blocks, members[at])
        group = _group(name, stays, members[at], head, foreign)
        groups.append(replace(group, packed=at >= 0 and packed[at]))
    torn = _torn(helds)
    for held in (held for group in groups if group.passes for held in group.held):
        if held.path in torn:
            raise UsageError(
                f"`{held.path}` and `{torn[held.path]}` are different views of the same bytes; "
                "they have to stay on the card."
            )
    return tuple(_coloured(groups))


def staying(module: nn.Module, order: Order | None) -> dict[str, str]:
    """For each module that owns weights which cannot be streamed, by its path, why: for plans."""
    helds = list(inner_of(weights(module)))
    foreign, torn = _foreign(module, helds, order), _torn(helds)
    owners: dict[Any, str] = {}
    found: dict[str, str] = {}
    for held in helds:
        owner = owners.setdefault(identity(held.tensor), held.leaf)
        if held.path in torn:
            found[owner] = f"`{held.path}` and `{torn[held.path]}` are views of the same bytes"
        if owner and "" in foreign.get(held.path, ()):
            found[owner] = f"`{held.path}` is used while no module but the whole is called"
    return found


def card_bytes(groups: Sequence[Group], *, slots: int) -> int:
    """What `groups` take on a card with `slots` slots in the first ring, one in each further.

    Resident buffers and slots as they are asked for, before an allocator rounds them.
    """
    rings: dict[int, list[int]] = defaultdict(list)
    for group in groups:
        if not group.stays:
            rings[group.ring].append(group.layout.bytes)
    copies = {ring: min(1 if ring else slots, len(sizes)) for ring, sizes in rings.items()}
    resident = sum(group.layout.bytes for group in groups if group.stays)
    return resident + sum(copies[ring] * slot_of(sizes) for ring, sizes in rings.items())


def _pieces_of_leaves(residency: Residency, blocks: Weights) -> dict[str, int]:
    """For each leaf, the index of its piece; names are those that units and their parts have."""
    names = {piece.name: at for at, piece in enumerate(residency.pieces)}
    wholes = {block.name or "root": block for block in blocks.blocks}
    if names.keys() == wholes.keys():
        return {leaf.name: names[n] for n, block in wholes.items() for leaf in block.leaves}
    apart = {name: leaf for block in blocks.blocks for name, leaf in _parts(block)}
    if names.keys() != apart.keys():
        raise UsageError(
            f"the plan's pieces are not those of `{blocks.name}`: "
            f"{', '.join(sorted(names.keys() ^ apart.keys())[:3])}."
        )
    return {leaf: names[name] for name, leaf in apart.items()}


def _parts(block: Block) -> Iterator[tuple[str, str]]:
    """What a plan calls each leaf of `block` where it is taken apart."""
    for leaf in block.leaves:
        if len(block.leaves) > 1:
            yield leaf.name or f"{block.name or 'root'} (own)", leaf.name
        else:
            yield block.name or "root", leaf.name


def _head(name: str, blocks: Weights, held: Sequence[Held]) -> str:
    """The module that a piece is called by: a block, or else the owner."""
    for block in blocks.blocks:
        if (block.name or "root") == name and all(holds(block.name, h.leaf) for h in held):
            return block.name
    return held[0].leaf


def _group(
    name: str, stays: bool, held: Sequence[Held], head: str, foreign: Mapping[str, Iterable[str]]
) -> Group:
    index: dict[Any, int] = {}
    unique: list[torch.Tensor] = []
    for each in held:
        key = identity(each.tensor)
        if key not in index:
            index[key] = len(unique)
            unique.append(each.tensor)
    anchors = dict.fromkeys([head, *(each.leaf for each in held)])
    for each in held:
        for unit in foreign.get(each.path, ()):
            if any(holds(anchor, unit) for anchor in anchors):
                continue
            if not unit and not stays:
                raise UsageError(
                    f"`{each.path}` is used while `{each.leaf}` is not called, and no module but "
                    "the whole covers that: it has to stay on the card."
                )
            anchors[unit] = None
            head = unit if holds(unit, head) else head
    places = tuple(index[identity(each.tensor)] for each in held)
    return Group(name, stays, Layout.of(unique), tuple(held), places, tuple(anchors), head)


def _foreign(module: nn.Module, helds: Sequence[Held], order: Order | None) -> dict[str, list[str]]:
    """For each tensor that is used while its owner is not called, the modules called meanwhile.

    `order` saw them; of some modules of PyTorch it is known.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for use in order.foreign if order is not None else ():
        found[use.path].append(use.unit)
    for path, part in module.named_modules():
        for held in helds if isinstance(part, _REACHING) else ():
            if held.leaf != path and holds(path, held.leaf):
                found[held.path].append(path)
    for held in helds:
        whole = outer_of(held).path
        if held.path != whole and whole in found:
            found[held.path] += found[whole]
    return found


def _coloured(groups: Sequence[Group]) -> Iterator[Group]:
    """Give each streamed group a ring, so that those in use at the same time have several.

    Two are where a call of one lies within a call of the other. The largest come first, so that
    what is left for further rings is small: tables that a block owns beside its layers.
    """
    at_anchor: dict[str, list[int]] = defaultdict(list)
    for at, group in enumerate(groups):
        for anchor in () if group.stays else group.anchors:
            at_anchor[anchor].append(at)
    beside: dict[int, set[int]] = defaultdict(set)
    for anchor, here in at_anchor.items():
        above = [at for path in upwards(anchor) for at in at_anchor.get(path, ())]
        for at in here:
            beside[at].update(other for other in above if other != at)
            for other in above:
                if other != at:
                    beside[other].add(at)
    rings: dict[int, int] = {}
    for at in sorted(range(len(groups)), key=lambda at: -groups[at].layout.bytes):
        taken = {rings[other] for other in beside[at] if other in rings}
        rings[at] = next(ring for ring in range(len(groups) + 1) if ring not in taken)
    for at, group in enumerate(groups):
        yield replace(group, ring=rings[at])


def _refuse(held: Held) -> None:
    """What cannot be moved as bytes is named."""
    tensor = held.tensor
    why = ""
    if is_lazy(tensor):
        why = "has no shape yet: run the module once first"
    elif tensor.device.type != "cpu":
        why = f"is on {tensor.device}, and masters have to be on the host"
    elif not isinstance(held, Inner) and is_shell(tensor):
        why = why_unknown(tensor)
    elif tensor.layout is not torch.strided:
        why = f"is laid out as {tensor.layout}"
    if why:
        raise UsageError(f"`{held.path}` {why}; it cannot be streamed.")


def _shared(held: Held, helds: Iterable[Held]) -> bool:
    """Whether others look at bytes of it in another layout, so that it was not counted itself."""
    key, storage = identity(held.tensor), extent(held.tensor)[0]
    return any(
        extent(other.tensor)[0] == storage and identity(other.tensor) != key for other in helds
    )


def _torn(helds: Iterable[Held]) -> dict[str, str]:
    """Tensors that share some bytes with another without being a tie of it, and that other."""
    spans: dict[Any, list[tuple[int, int, Held]]] = defaultdict(list)
    for held in helds:
        storage, start, end = extent(held.tensor)
        if start < end:
            spans[storage].append((start, end, held))
    found = {}
    for inside in spans.values():
        inside.sort(key=lambda span: span[:2])
        _, reach, widest = inside[0]
        for start, end, held in inside[1:]:
            if start < reach and identity(held.tensor) != identity(widest.tensor):
                found[held.path], found[widest.path] = widest.path, held.path
            if end > reach:
                reach, widest = end, held
    return found
