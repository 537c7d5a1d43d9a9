"""The plan of one stage: the first way that fits, what stays, and the ledger of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tightfit.plan.demand import Demand, Way
from tightfit.plan.figure import Figure
from tightfit.plan.ledger import Ledger
from tightfit.plan.pace import Pace, compute_seconds
from tightfit.plan.streaming.pieces import Convert
from tightfit.plan.streaming.residency import Limits, Mode, Residency, least_option, settle
from tightfit.plan.streaming.ring import Option, resident_option, streamed_options
from tightfit.plan.supply import Supply
from tightfit.units import MIB

_TRIES = 6


@dataclass(frozen=True)
class WayNeed:
    """What one way needs beyond what is held already, as far as it is known.

    Attributes:
        way: which.
        least: bytes with as little resident as the mode allows.
        whole: bytes with everything resident.
        fits: whether `least` is there.
    """

    way: Way
    least: int
    whole: int
    fits: bool


@dataclass(frozen=True)
class StagePlan:
    """One stage.

    Attributes:
        demand: what it was made for.
        way: the first that fits; the last, where none does.
        ways: in order; without those that are worked out only where nothing before them fits.
        residency: None where none fits.
        ledger: of the peak; where none fits, of the least it would take.
        room: bytes that were there for it.
        idle: bytes of other models that stay on the card meanwhile.
        pace: of one call; None where none fits.
        keeps_all: bytes more that keep every weight resident; 0 where they are.
        hides_copies: bytes more from which on streaming costs no time; None where it costs none,
            where that is not known, or where no less than `keeps_all` would do.
    """

    demand: Demand
    way: Way
    ways: tuple[WayNeed, ...]
    residency: Residency | None
    ledger: Ledger
    room: int
    idle: int
    pace: Pace | None = None
    keeps_all: int = 0
    hides_copies: int | None = None

    @property
    def fits(self) -> bool:
        """Whether it can be done, as far as it is known."""
        return self.residency is not None

    @property
    def resident(self) -> tuple[str, ...]:
        """Names of what stays on the card."""
        return tuple(piece.name for piece in self.residency.resident) if self.residency else ()

    @property
    def streamed(self) -> tuple[str, ...]:
        """Names of what is copied for each use."""
        return tuple(piece.name for piece in self.residency.streamed) if self.residency else ()

    @property
    def peak_allocated(self) -> int | None:
        """All live tensors at the peak; None if a part of it is unknown or it does not fit."""
        if not self.fits:
            return None
        names = [name for name in self.ledger.lines if name not in _NOT_ALLOCATED]
        return self.ledger.of(*names)

    @property
    def peak_reserved(self) -> int | None:
        """`peak_allocated` and the slack."""
        slack, allocated = self.ledger.of("slack"), self.peak_allocated
        return None if slack is None or allocated is None else allocated + slack

    @property
    def must_stay(self) -> dict[str, str]:
        """Name → reason, of what cannot be streamed."""
        found = {}
        for unit in self.demand.units:
            for each in (unit, *unit.parts):
                if each.stays is not None:
                    found[each.name] = each.stays
        return found


_NOT_ALLOCATED = ("slack", "context", "held_by_others", "reserve")


@dataclass(frozen=True)
class Outline:
    """A demand with every choice of ring that its weights allow."""

    demand: Demand
    resident: Option
    streamed: tuple[Option, ...]

    @classmethod
    def of(cls, demand: Demand, *, slots: int = 2, convert: Convert = "card") -> Outline:
        """Worked out once, since it does not depend on the room."""
        options = streamed_options(demand.units, slots=slots, convert=convert, slices=demand.slices)
        return cls(demand, resident_option(demand.units), tuple(options))


def plan_stage(
    outline: Outline, supply: Supply, *, mode: Mode = "auto", idle: int = 0
) -> StagePlan:
    """The first way that fits `supply` beside `idle` bytes of other models."""
    demand = outline.demand
    room = max(0, supply.room - idle)
    option = least_option(outline.resident, outline.streamed, mode=mode)
    needs: list[WayNeed] = []
    for offered in demand.ladder:
        way: Way | None = offered
        if offered.cut is not None:
            if any(need.fits and _on_host(need.way, supply) for need in needs):
                continue
            way = offered.cut(room - option.least - working_bytes(demand, None))
        if way is None:
            continue
        working = working_bytes(demand, way)
        least = option.least + working
        needs.append(WayNeed(way, least, outline.resident.least + working, least <= room))
    fitting = [need for need in needs if need.fits] or needs[-1:]
    chosen = next((need for need in fitting if _on_host(need.way, supply)), fitting[0])
    residency = None
    if chosen.fits:
        residency = _settled(outline, supply, room - working_bytes(demand, chosen.way), mode)
    lines = {
        "weights_resident": residency.resident_bytes if residency else option.staying,
        "ring": residency.ring.bytes if residency else option.ring.bytes,
        "conversion": residency.conversion if residency else option.conversion,
    }
    plan = StagePlan(
        demand=demand,
        way=chosen.way,
        ways=tuple(needs),
        residency=residency,
        ledger=_ledger(demand, chosen.way, supply, idle=idle, weights=lines),
        room=room,
        idle=idle,
    )
    if residency is None or not residency.streamed or mode == "none":
        return plan
    plan = replace(plan, keeps_all=_keeping(needs, chosen, room))
    return replace(plan, hides_copies=_hiding(outline, supply, plan, mode))


def working_bytes(demand: Demand, way: Way | None) -> int:
    """What is taken beside weights, ring and conversion, as far as it is known; without a `way`,
    what every one takes."""
    figures = [demand.scratch]
    if way is not None:
        figures += [way.activations, way.workspace, way.slack]
    return demand.inputs + sum(figure.known for figure in figures)


def _on_host(way: Way, supply: Supply) -> bool:
    """Whether the host has room for what `way` keeps there."""
    return supply.host is None or way.host.known <= supply.host.room


def _first_way(needs: Sequence[WayNeed], room: int) -> Way | None:
    return next((need.way for need in needs if need.least <= room), None)


def limits_of(demand: Demand, supply: Supply) -> Limits:
    """What bounds one call of `demand`."""
    limits = Limits(compute_seconds(demand, supply)[0], supply.link.per_second)
    if supply.annexe is not None:
        limits = replace(limits, peer=supply.annexe.rate.per_second, parked=supply.annexe.room)
    return limits if demand.piece is None else replace(limits, piece=demand.piece)


def _settled(outline: Outline, supply: Supply, room: int, mode: Mode) -> Residency | None:
    return settle(
        outline.resident,
        outline.streamed,
        room=room,
        budget=supply.budget,
        mode=mode,
        limits=limits_of(outline.demand, supply),
    )


def _ledger(
    demand: Demand, way: Way, supply: Supply, *, idle: int, weights: dict[str, int]
) -> Ledger:
    lines = {
        "held": Figure(supply.held, "measured"),
        "weights_resident": Figure(weights["weights_resident"], "measured"),
        "weights_idle": Figure(idle, "measured"),
        "ring": Figure(weights["ring"]),
        "conversion": Figure(weights["conversion"]),
        "scratch": demand.scratch,
        "input": Figure(demand.inputs),
        "activations": way.activations,
        "library_workspaces": way.workspace,
        "slack": way.slack,
        "context": supply.context,
        "held_by_others": supply.held_by_others,
        "reserve": Figure(supply.reserve, "measured"),
    }
    return Ledger(lines, supply.budget, supply.total)


def _keeping(needs: Sequence[WayNeed], chosen: WayNeed, room: int) -> int:
    """Bytes more with which all weights stay.

    A way further up the ladder may begin to fit before that, with weights streamed; then it is the
    one whose weights have to stay.
    """
    upto = needs[: needs.index(chosen) + 1]
    sizes = [
        need.whole
        for at, need in enumerate(upto)
        if all(earlier.least > need.whole for earlier in upto[:at])
    ]
    return min(sizes) - room


def _hiding(outline: Outline, supply: Supply, plan: StagePlan, mode: Mode) -> int | None:
    """Bytes more from which on copies are hidden: worked out, then tried."""
    limits = limits_of(outline.demand, supply)
    residency = plan.residency
    if limits.hidden is None or residency is None:
        return None
    room = plan.room - working_bytes(plan.demand, plan.way)
    excess = residency.moved_bytes - limits.hidden
    if excess <= 0 and residency.ring.overlaps:
        return None
    more = 0
    for _ in range(_TRIES):
        more += max(MIB, int(excess))
        if more >= plan.keeps_all or plan.way != _first_way(plan.ways, plan.room + more):
            return None
        wider = replace(supply, budget=supply.budget + more, total=supply.total + more)
        then = _settled(outline, wider, room + more, mode)
        if then is None:
            return None
        excess = then.moved_bytes - limits.hidden
        if excess <= 0 and (then.ring.overlaps or not then.streamed):
            return more
    return None


def unknown_figures(plans: Sequence[StagePlan], supply: Supply) -> tuple[str, ...]:
    """What the sums leave out, in words."""
    names = {"library_workspaces": "library workspaces"}
    found = [
        f"{names.get(line, line)} of {plan.demand.stage}"
        for plan in plans
        for line in plan.ledger.unknown
        if line not in ("context", "held_by_others")
    ]
    if supply.context.bytes is None:
        found.append("the device context")
    if supply.held_by_others.bytes is None:
        found.append("what other programs hold")
    return tuple(found)
