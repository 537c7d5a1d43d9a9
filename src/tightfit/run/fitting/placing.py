"""Where the weights of a live module go, for a call that is about to be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import nn

from tightfit.allocators import ALIGNMENT, round_up
from tightfit.card.base import Reading
from tightfit.place.converting.uses import Room, Use, room_of, uses_of
from tightfit.place.streaming.files import own_bytes
from tightfit.place.streaming.groups import Scan, card_bytes, groups_of, staying
from tightfit.plan.demand import Demand, Unit
from tightfit.plan.figure import Figure, Rate
from tightfit.plan.plan import Plan, make
from tightfit.plan.slack import FRAGMENTS, replay
from tightfit.plan.stage import limits_of, working_bytes
from tightfit.plan.streaming.pieces import Level, pieces_of
from tightfit.plan.streaming.residency import Mode, Residency
from tightfit.plan.streaming.ring import Ring
from tightfit.plan.supply import Supply
from tightfit.run.fitting.need import Need
from tightfit.run.fitting.packs import Choice, Packs
from tightfit.weigh.blocks import Block, Weights
from tightfit.weigh.conversions import Conversions
from tightfit.weigh.module_blocks import blocks_of
from tightfit.weigh.order import Order, ordered
from tightfit.weigh.shells import inner_of
from tightfit.weigh.tensors import Kind, walk, weights

Pack = Literal["auto", "on", "off"]
"""Whether weights are packed: where that is faster, wherever that is possible, or never."""
PACKS: tuple[Pack, ...] = ("auto", "on", "off")
_WORTH = 1.02
"""Packing has to make a call so many times faster to be worth what it takes beforehand."""
_LEVELS: tuple[Level, ...] = ("block", "leaf")
_SLOTS = 4
"""Copies of the largest piece that a ring may have room for, where fewer hold up compute."""
_LAUNCH = 30e-6
"""Seconds that Python and PyTorch take for an operator, roughly: SDXL's UNet has 2,000, and takes
0.06 to 0.09 s at 1024x1024 on an H200 whose arithmetic would take 0.02."""
_PIECE = 100e-6
"""Seconds that Python takes for a piece that streams, where it is what a call waits for: hooks,
events, and the launch of a copy. On an H200, 134 layers were seen to add 16 ms."""
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
        apart: owners whose weights are in use beside those of others.
        conversions: which weights are used in another dtype than they are stored in.
        uses: when.
        most: bytes of the largest single allocation on the card; None is no such limit.
    """

    module: nn.Module
    blocks: Weights
    order: Order | None
    units: tuple[Unit, ...]
    beside: int
    mapped: bool = False
    apart: frozenset[str] = frozenset()
    conversions: Conversions = field(default_factory=Conversions)
    uses: tuple[Use, ...] = ()
    most: int | None = None
    _rooms: dict[torch.dtype, Room] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, module: nn.Module, order: Order | None, *, most: int | None = None) -> Weighed:
        """Raises `UsageError` for what cannot be streamed, by its path."""
        blocks = blocks_of(module)
        if order is not None:
            blocks = ordered(blocks, order)
        if most is not None:
            blocks = blocks.apart()
        units = tuple(_units(module, blocks, order, staying(module, order)))
        beside, apart = _beside(module, blocks, order, units)
        beside += _tables(module)
        mapped = not own_bytes(module)
        what = Conversions.of(module)
        return cls(
            module,
            blocks,
            order,
            units,
            beside,
            mapped=mapped,
            apart=apart,
            conversions=what,
            uses=uses_of(what.layers, Scan(module, order=order).foreign) if what.layers else (),
            most=most,
        )

    @property
    def slots(self) -> int:
        """That a ring may have; all of them are one allocation."""
        largest = max((unit.bytes for unit in self.units), default=0)
        if self.most is None or not largest:
            return _SLOTS
        return max(1, min(_SLOTS, self.most // largest))

    def room(self, dtype: torch.dtype | None) -> Room:
        """Where copies of converted weights lie, in calls that compute in `dtype`."""
        dtype = dtype or self.conversions.usual
        if dtype not in self._rooms:
            self._rooms[dtype] = room_of(self.uses, dtype)
        return self._rooms[dtype]

    def choice(self, need: Need, supply: Supply) -> Choice:
        """Weights as they are stored, for calls of that `need`."""
        units = self.timed(need, supply)
        if not self.uses:
            return Choice(units)
        room = self.room(need.dtype)
        blocks = self.blocks.blocks
        units = tuple(_converting(*each, room) for each in zip(units, blocks, strict=True))
        copied = sum(room.ends[name] - start for name, start in room.starts.items())
        return Choice(units, unpacked=copied)

    def timed(self, need: Need, supply: Supply) -> tuple[Unit, ...]:
        """The units with shares as long as they take, where the host may launch more slowly."""
        order, rate = self.order, supply.compute.per_second
        if order is None or rate is None or not _is_launched_slowly(need, supply):
            return self.units

        def seconds(leaf: str) -> float:
            return max(order.work.get(leaf, 0.0) / rate, order.launches.get(leaf, 0) * _LAUNCH)

        return tuple(
            _shared(unit, [seconds(leaf.name) for leaf in block.leaves])
            for unit, block in zip(self.units, self.blocks.blocks, strict=True)
        )

    def packs(self, values: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> Packs:
        """What its weights would take packed, by samples of what `values` gives for each."""
        return Packs.of(
            self.module,
            self.blocks,
            self.units,
            values,
            apart=self.apart,
            device_type=device.type,
        )

    @property
    def name(self) -> str:
        """Of its class."""
        return self.blocks.name


def plan_call(
    weighed: Weighed,
    need: Need,
    supply: Supply,
    *,
    arriving: int = 0,
    mode: Mode = "auto",
    pack: Pack = "off",
    packs: Callable[[], tuple[Packs, Rate]] | None = None,
    once: bool = False,
) -> Plan:
    """The plan of one call, with `arriving` bytes of inputs that are on the host still.

    Weights are packed where `pack` is ``on``, and with ``auto`` where that is faster by what is
    known of card and link, or where nothing else fits. `packs` tells what they would take, and how
    fast the card unpacks them, if that comes into question. What is called `once` and rests again
    is not packed to be faster, since every call brings all of it: only where nothing else fits.
    """
    plain = weighed.choice(need, supply)
    plan = _twice(weighed, plain, need, supply, arriving, mode)
    packable = not weighed.uses and weighed.most is None
    if pack == "off" or packs is None or not packable or not _may_pack(plan, mode):
        return plan
    if once and plan.fits and pack == "auto":
        return plan
    stage = plan.stages[0]
    known, unpack = packs()
    supply = replace(supply, unpack=unpack)
    if not known.sizes or not _has_host_room(weighed, known, supply):
        return plan
    choices = known.choices(
        plain.units, stage.residency, limits_of(stage.demand, supply), unpack.per_second
    )
    best = None if pack == "on" else plan
    for choice in choices:
        found = _twice(weighed, choice, need, supply, arriving, mode)
        if found.fits and (best is None or _is_faster(found, best)):
            best = found
    return best or plan


def _may_pack(plan: Plan, mode: Mode) -> bool:
    """Whether something is to be gained."""
    residency = plan.stages[0].residency
    return mode != "high" and (residency is None or bool(residency.streamed))


def _has_host_room(weighed: Weighed, packs: Packs, supply: Supply) -> bool:
    """Whether the host has room for packed masters, beside what stays in memory as it is.

    What is packed need not stay, or it lies in a file.
    """
    whole = sum(unit.bytes for unit in weighed.units)
    beside = 0 if weighed.mapped else whole - sum(packs.raw.values())
    return supply.host is None or beside + sum(packs.sizes.values()) <= supply.host.room


def _is_faster(found: Plan, than: Plan) -> bool:
    """By what is predicted; what does not fit is slower than anything."""
    if not than.fits:
        return True
    one, two = found.stages[0].pace, than.stages[0].pace
    if one is None or two is None or one.at_least or two.at_least:
        return False
    assert one.seconds is not None
    assert two.seconds is not None
    return one.seconds * _WORTH < two.seconds


def _twice(
    weighed: Weighed, choice: Choice, need: Need, supply: Supply, arriving: int, mode: Mode
) -> Plan:
    """What the allocator takes beyond the weights that stay depends on which those are."""
    plan = _planned(weighed, choice, need, supply, arriving, mode, rounding=0)
    residency = plan.stages[0].residency
    rounding = 0 if residency is None else rounding_of(residency, supply.allocator)
    if rounding:
        plan = _planned(weighed, choice, need, supply, arriving, mode, rounding=rounding)
    return plan


def rounding_of(residency: Residency, allocator: str) -> int:
    """What `allocator` takes beyond the resident pieces and the ring, each asked for by itself."""
    if allocator not in FRAGMENTS:
        return 0
    sizes = [piece.bytes for piece in residency.resident]
    sizes += (residency.ring.bytes, residency.conversion)
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
    weighed: Weighed,
    choice: Choice,
    need: Need,
    supply: Supply,
    arriving: int,
    mode: Mode,
    *,
    rounding: int,
) -> Plan:
    activations, workspace = Figure(supply.room // _UNKNOWN_SHARE, "table"), Figure(0)
    if need.dry is not None and need.allocated is not None:
        activations = Figure(need.dry)
        workspace = Figure(max(0, need.allocated - need.dry) + choice.scratch)
    demand = Demand(
        stage="forward",
        units=choice.units,
        activations=activations,
        workspace=workspace,
        slack=Figure(need.slack + rounding),
        inputs=arriving,
        scratch=Figure(weighed.beside),
        flops=_flops(need, supply, choice),
        what=f"run {weighed.name}",
        model=weighed.name,
        mapped=weighed.mapped,
        piece=_PIECE if _is_launched_slowly(need, supply) else None,
        slices=False,
    )
    return make([demand], supply, mode=mode, slots=weighed.slots)


def _is_launched_slowly(need: Need, supply: Supply) -> bool:
    """Whether the host takes longer for a call than the card, as far as that is known."""
    rate = supply.compute.per_second
    return bool(rate and need.flops is not None and need.operators * _LAUNCH * rate > need.flops)


def _converting(unit: Unit, block: Block, room: Room) -> Unit:
    """`unit` with the room that the copies of its parts, or its own, reach up to."""
    ends = [room.ends.get(leaf.name, 0) for leaf in block.leaves]
    if not unit.parts:
        return replace(unit, converted=max(ends))
    parts = tuple(replace(part, converted=end) for part, end in zip(unit.parts, ends, strict=True))
    return replace(unit, parts=parts)


def _shared(unit: Unit, seconds: Sequence[float]) -> Unit:
    """`unit` with shares, its own and those of its parts, if it has any."""
    parts = tuple(
        replace(part, share=share) for part, share in zip(unit.parts, seconds, strict=False)
    )
    return replace(unit, share=sum(seconds), parts=parts)


def _flops(need: Need, supply: Supply, choice: Choice) -> float | None:
    """Of a call; where the host launches it more slowly than the card computes, of that time.

    With what the card could compute while it unpacks what is packed.
    """
    rate, unpack = supply.compute.per_second, supply.unpack.per_second
    if need.flops is None or rate is None:
        return need.flops
    unpacking = choice.unpacked / unpack * rate if unpack else 0.0
    launching = need.operators * _LAUNCH + choice.pieces * _PIECE
    return max(need.flops + unpacking, launching * rate)


def _units(
    module: nn.Module, blocks: Weights, order: Order | None, stays: dict[str, str]
) -> Iterator[Unit]:
    """As large as what is really taken: every tensor aligned as in its buffer."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    for held in inner_of(weights(module)):
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
) -> tuple[int, frozenset[str]]:
    """The most that is taken beside the plan, whatever is streamed; and for which owners' sake."""
    most = 0
    apart: set[str] = set()
    for level in _LEVELS:
        pieces = pieces_of(units, level, convert="card")
        largest = max((piece.slot for piece in pieces), default=0)
        stays = tuple(piece.stays for piece in pieces)
        nothing = Residency(pieces, stays, Ring(level, largest, 1), 0)
        groups = groups_of(module, nothing, blocks, order=order)
        first = [group for group in groups if not group.ring]
        extra = card_bytes(groups, slots=1) - card_bytes(first, slots=1)
        most = max(most, extra + ALIGNMENT * len({group.ring for group in groups}))
        apart |= {held.leaf for group in groups if group.ring for held in group.held}
    return most + _DTYPES * ALIGNMENT, frozenset(apart)


def _tables(module: nn.Module) -> int:
    """Tables in plain attributes, which come to the card with the weights."""
    return sum(
        round_up(held.tensor.nbytes, ALIGNMENT)
        for held in walk(module)
        if held.kind is Kind.ATTRIBUTE and not held.steps and not held.recomputed
    )
