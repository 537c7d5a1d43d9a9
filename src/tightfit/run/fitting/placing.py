"""Where the weights of a live module go, for a call that is about to be made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from tightfit.allocators import ALIGNMENT, round_up
from tightfit.card.base import Reading
from tightfit.place.streaming.files import own_bytes
from tightfit.place.streaming.groups import card_bytes, groups_of, staying
from tightfit.plan.demand import Demand, Unit
from tightfit.plan.figure import Figure
from tightfit.plan.plan import Plan, make
from tightfit.plan.slack import FRAGMENTS, replay
from tightfit.plan.stage import working_bytes
from tightfit.plan.streaming.pieces import Level, pieces_of
from tightfit.plan.streaming.residency import Mode, Residency
from tightfit.plan.streaming.ring import Ring
from tightfit.plan.supply import Supply
from tightfit.run.fitting.need import Need
from tightfit.weigh.blocks import Weights
from tightfit.weigh.module_blocks import blocks_of
from tightfit.weigh.order import Order, ordered
from tightfit.weigh.tensors import Kind, walk, weights

_LEVELS: tuple[Level, ...] = ("block", "leaf")
_SLOTS = 4
"""Copies of the largest piece that a ring may have room for, where fewer hold up compute."""
_LAUNCH = 30e-6
"""Seconds that Python and PyTorch take for an operator, roughly: SDXL's UNet has 2,000, and takes
0.06 to 0.09 s at 1024x1024 on an H200 whose arithmetic would take 0.02."""
_DTYPES = 8
"""Of how many dtypes weights are at most: each has one element on the card to stand for them."""
_UNKNOWN_SHARE = 4
"""Of the room, the part that is kept for a call of which nothing is known."""


@dataclass(frozen=True)
class Weighed:
    """A module, in the pieces that it moves in.

    Attributes:
        module: live.
        blocks: in the order they run, as far as it is known.
        order: as a dry run saw it; None where there was none.
        units: what the planner takes, each tensor in blocks of `ALIGNMENT` bytes.
        beside: bytes on the card that no piece stands for: further rings, placeholders.
        mapped: all of it shows files, so that its masters can stay there.
    """

    module: nn.Module
    blocks: Weights
    order: Order | None
    units: tuple[Unit, ...]
    beside: int
    mapped: bool = False

    @classmethod
    def of(cls, module: nn.Module, order: Order | None) -> Weighed:
        """Raises `UsageError` for what cannot be streamed, by its path."""
        blocks = blocks_of(module)
        if order is not None:
            blocks = ordered(blocks, order)
        units = tuple(_units(module, blocks, order, staying(module, order)))
        beside = _beside(module, blocks, order, units) + _tables(module)
        return cls(module, blocks, order, units, beside, mapped=not own_bytes(module))

    @property
    def name(self) -> str:
        """Of its class."""
        return self.blocks.name


def plan_call(
    weighed: Weighed, need: Need, supply: Supply, *, arriving: int = 0, mode: Mode = "auto"
) -> Plan:
    """The plan of one call, with `arriving` bytes of inputs that are on the host still.

    What the allocator takes beyond the weights that stay depends on which those are, so that the
    plan is made twice.
    """
    plan = _planned(weighed, need, supply, arriving, mode, rounding=0)
    residency = plan.stages[0].residency
    rounding = 0 if residency is None else rounding_of(residency, supply.allocator)
    if rounding:
        plan = _planned(weighed, need, supply, arriving, mode, rounding=rounding)
    return plan


def rounding_of(residency: Residency, allocator: str) -> int:
    """What `allocator` takes beyond the resident pieces and the ring, each asked for by itself."""
    if allocator not in FRAGMENTS:
        return 0
    sizes = [piece.bytes for piece in residency.resident]
    sizes.append(residency.ring.bytes)
    moves = [(at, size) for at, size in enumerate(sizes) if size]
    return max(0, replay(moves, allocator).reserved - sum(sizes))


def taken_by(plan: Plan, need: Need) -> int:
    """Bytes of weights, ring and what stands beside them, as planned for a call of that `need`.

    With what the allocator takes beyond them, which the plan has among the slack of the call.
    """
    stage = plan.stages[0]
    assert stage.residency is not None
    return stage.residency.bytes + stage.demand.scratch.known + _rounding(plan, need)


def working_of(plan: Plan, need: Need) -> int:
    """Bytes that a call takes beside all that, with what the allocator takes for it."""
    stage = plan.stages[0]
    working = working_bytes(stage.demand, stage.way) - stage.demand.scratch.known
    return working - _rounding(plan, need)


def _rounding(plan: Plan, need: Need) -> int:
    return max(0, plan.stages[0].way.slack.known - need.slack)


def supply_of_reading(reading: Reading, supply: Supply, *, ours: int) -> Supply:
    """`supply` as the card is now, apart from `ours`: bytes that a new plan may place anew."""
    limit = supply.budget if reading.limit is None else min(supply.budget, reading.limit)
    return replace(
        supply,
        total=reading.total,
        budget=limit,
        held=max(0, (reading.allocated or 0) - ours),
        held_by_others=Figure(reading.held_by_others, "measured"),
        context=Figure(reading.context, "measured"),
    )


def _planned(
    weighed: Weighed, need: Need, supply: Supply, arriving: int, mode: Mode, *, rounding: int
) -> Plan:
    activations, workspace = Figure(supply.room // _UNKNOWN_SHARE, "table"), Figure(0)
    if need.dry is not None and need.allocated is not None:
        activations = Figure(need.dry)
        workspace = Figure(max(0, need.allocated - need.dry))
    demand = Demand(
        stage="forward",
        units=weighed.units,
        activations=activations,
        workspace=workspace,
        slack=Figure(need.slack + rounding),
        inputs=arriving,
        scratch=Figure(weighed.beside),
        flops=_flops(need, supply),
        what=f"run {weighed.name}",
        model=weighed.name,
        mapped=weighed.mapped,
    )
    return make([demand], supply, mode=mode, slots=_SLOTS)


def _flops(need: Need, supply: Supply) -> float | None:
    """Of a call; where the host launches it more slowly than the card computes, of that time."""
    rate = supply.compute.per_second
    if need.flops is None or rate is None:
        return need.flops
    return max(need.flops, need.operators * _LAUNCH * rate)


def _units(
    module: nn.Module, blocks: Weights, order: Order | None, stays: dict[str, str]
) -> Iterator[Unit]:
    """As large as what is really taken: every tensor aligned as in its buffer."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    for held in weights(module):
        if id(held.tensor) not in seen:
            seen.add(id(held.tensor))
            sizes[held.leaf] = sizes.get(held.leaf, 0) + round_up(held.tensor.nbytes, ALIGNMENT)
    work = order.work if order is not None and any(order.work.values()) else None
    for block in blocks.blocks:
        parts = tuple(
            Unit(
                leaf.name or f"{block.name or 'root'} (own)",
                sizes.get(leaf.name, 0),
                share=None if work is None else work.get(leaf.name, 0.0),
                stays=stays.get(leaf.name),
            )
            for leaf in block.leaves
        )
        yield Unit(
            block.name or "root",
            sum(part.bytes for part in parts),
            share=None if work is None else sum(part.share or 0.0 for part in parts),
            parts=parts if len(parts) > 1 else (),
            stays=parts[0].stays if len(parts) == 1 else None,
        )


def _beside(
    module: nn.Module, blocks: Weights, order: Order | None, units: tuple[Unit, ...]
) -> int:
    """The most that is taken beside the plan, whatever is streamed."""
    most = 0
    for level in _LEVELS:
        pieces = pieces_of(units, level, convert="card")
        largest = max((piece.slot for piece in pieces), default=0)
        stays = tuple(piece.stays for piece in pieces)
        nothing = Residency(pieces, stays, Ring(level, largest, 1), 0)
        groups = groups_of(module, nothing, blocks, order=order)
        first = [group for group in groups if not group.ring]
        extra = card_bytes(groups, slots=1) - card_bytes(first, slots=1)
        most = max(most, extra + ALIGNMENT * len({group.ring for group in groups}))
    return most + _DTYPES * ALIGNMENT


def _tables(module: nn.Module) -> int:
    """Tables in plain attributes, which come to the card with the weights."""
    return sum(
        round_up(held.tensor.nbytes, ALIGNMENT)
        for held in walk(module)
        if held.kind is Kind.ATTRIBUTE and not held.steps and not held.recomputed
    )
