"""The plan of a job: every stage on one card, and the host beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tightfit.errors import BooksError, MemoryShortage
from tightfit.plan import describe, explain
from tightfit.plan.demand import Demand
from tightfit.plan.figure import Figure, weakest
from tightfit.plan.host import HostPlan, plan_host, streamed_pieces
from tightfit.plan.pace import Copied, pace_of
from tightfit.plan.stage import Outline, StagePlan, limits_of, plan_stage, unknown_figures
from tightfit.plan.streaming.pieces import Convert
from tightfit.plan.streaming.residency import Mode
from tightfit.plan.supply import Supply


@dataclass(frozen=True)
class Plan:
    """What goes where, before anything is allocated.

    Attributes:
        supply: what it was made for.
        mode: of residency.
        stages: in the order of the job; each has the card to itself, unless `together`.
        together: the weights of all stages stay on the card from one to the next.
        host: None where nothing is known of the host.
        not_predicted: what the sums leave out, in words.
        parked: by stage, bytes of what streams that lie on the supply's second card.
    """

    supply: Supply
    mode: Mode
    stages: tuple[StagePlan, ...]
    together: bool
    host: HostPlan | None
    not_predicted: tuple[str, ...]
    parked: tuple[int, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the job can be done, as far as it is known."""
        return all(stage.fits for stage in self.stages) and (self.host is None or self.host.fits)

    @property
    def peak_allocated(self) -> int | None:
        """Bytes of live tensors at the highest; None if a stage is not known or does not fit."""
        return _highest([stage.peak_allocated for stage in self.stages])

    @property
    def peak_reserved(self) -> int | None:
        """Likewise of what the allocator takes."""
        return _highest([stage.peak_reserved for stage in self.stages])

    @property
    def exact(self) -> bool:
        """Whether every stage differs from a whole run by rounding alone."""
        return all(stage.way.exact for stage in self.stages)

    def stage(self, name: str) -> StagePlan:
        """The stage called `name`. Raises `KeyError`."""
        for stage in self.stages:
            if stage.demand.stage == name:
                return stage
        raise KeyError(name)

    def check(self) -> None:
        """Prove the books of a plan that fits. Raises `BooksError`."""
        for stage in self.stages:
            if stage.residency is not None:
                stage.ledger.check()
                residency = stage.residency
                if residency.resident_bytes + residency.streamed_bytes != stage.demand.weights:
                    raise BooksError(f"weights of `{stage.demand.stage}` are lost in the plan")
        annexe = self.supply.annexe
        if annexe is not None and max(self.parked, default=0) > annexe.room:
            raise BooksError(
                f"the plan takes {max(self.parked)} of {annexe.room} bytes of {annexe.card}"
            )
        if self.fits and self.host is not None and self.host.taken > self.host.room:
            raise BooksError(f"the plan takes {self.host.taken} of {self.host.room} bytes of RAM")

    def shortage(self) -> MemoryShortage:
        """The error for a plan that does not fit: what, how much, what was tried, what to do."""
        return describe.shortage(self)

    def as_dict(self) -> dict[str, Any]:
        """JSON values: bytes are integers, what is not known is null."""
        return describe.as_dict(self)

    def explain(self) -> str:
        """One screenful for people."""
        return explain.explain(self)


def make(
    demands: Sequence[Demand],
    supply: Supply,
    *,
    mode: Mode = "auto",
    slots: int = 2,
    convert: Convert = "card",
) -> Plan:
    """Plan a job.

    Args:
        demands: its stages in order.
        supply: what there is.
        mode: ``auto``, ``high``, ``low`` or ``none``; see `tightfit.plan.streaming.residency`.
        slots: copies of streamed weights that may be on the card at once; 1 copies nothing ahead.
        convert: whether stored bytes move and the card converts them, or the host does before.

    Returns:
        A plan, also where the job does not fit: `Plan.fits` says.
    """
    outlines = [Outline.of(demand, slots=slots, convert=convert) for demand in demands]
    stages = [plan_stage(outline, supply, mode=mode) for outline in outlines]
    idle = _idle(demands)
    together = _all_stay(stages, idle, supply)
    if together:
        stages = [
            plan_stage(outline, supply, mode=mode, idle=beside)
            for outline, beside in zip(outlines, idle, strict=True)
        ]
    host = _host(demands, stages, supply)
    copied = [_copied(stage, supply, host) for stage in stages]
    stages = [_paced(stage, supply, each) for stage, each in zip(stages, copied, strict=True)]
    unknown = (*unknown_figures(stages, supply), *_unknown_times(stages, supply, mode))
    if host is None:
        unknown += ("host memory",)
    parked = tuple(each.parked for each in copied)
    return Plan(supply, mode, tuple(stages), together, host, unknown, parked)


def _idle(demands: Sequence[Demand]) -> list[int]:
    """For each stage, the weights of the models that it does not use."""
    weights = {demand.owner: demand.weights for demand in demands}
    whole = sum(weights.values())
    return [whole - weights[demand.owner] for demand in demands]


def _all_stay(stages: Sequence[StagePlan], idle: Sequence[int], supply: Supply) -> bool:
    """Whether every model fits beside every stage, done in the way that it would be done alone.

    Not where something is unknown: keeping what could go would take what the unknown needs.
    """
    if not any(idle) or any(stage.ledger.unknown for stage in stages):
        return False
    return all(
        stage.residency is not None
        and not stage.residency.streamed
        and stage.ledger.ours - supply.held + beside <= supply.room
        for stage, beside in zip(stages, idle, strict=True)
    )


def _host(
    demands: Sequence[Demand], stages: Sequence[StagePlan], supply: Supply
) -> HostPlan | None:
    if supply.host is None:
        return None
    strips = [stage.way.host for stage in stages]
    sizes = [figure.bytes for figure in strips]
    known = [size for size in sizes if size is not None]
    most = None if len(known) < len(sizes) else max(known, default=0)
    return plan_host(
        supply.host,
        {demand.owner: (demand.weights, demand.mapped) for demand in demands},
        streamed_pieces(demands, [stage.residency for stage in stages]),
        strips=Figure(most, weakest(figure.source for figure in strips)),
        annexe=0 if supply.annexe is None else supply.annexe.room,
    )


def _copied(stage: StagePlan, supply: Supply, host: HostPlan | None) -> Copied:
    """What a call copies, from where; where nothing is known of the host, as if it were pinned."""
    residency = stage.residency
    if residency is None:
        return Copied()
    if host is not None:
        return host.copied(stage.demand.owner, residency)
    moved = residency.moved_bytes
    parked = 0 if supply.annexe is None else min(moved, supply.annexe.room)
    return Copied(pinned=moved - parked, parked=parked)


def _paced(stage: StagePlan, supply: Supply, copied: Copied) -> StagePlan:
    residency = stage.residency
    if residency is None:
        return stage
    overlaps = residency.ring.overlaps or not residency.streamed
    pace = pace_of(stage.demand, supply, copied, overlaps=overlaps)
    if copied.staged or copied.mapped:
        return replace(stage, pace=pace, hides_copies=None)
    played = residency.seconds(limits_of(stage.demand, supply))
    if played is not None and pace.limit_seconds is not None:
        pace = replace(pace, waits=max(0.0, played - pace.limit_seconds))
    return replace(stage, pace=pace)


def _unknown_times(stages: Sequence[StagePlan], supply: Supply, mode: Mode) -> list[str]:
    found = []
    for stage in stages:
        name = stage.demand.stage
        if stage.pace is None:
            continue
        if stage.pace.compute_seconds is None:
            found.append(f"compute time of {name}")
        if stage.pace.copy_seconds is None:
            found.append(f"copy time of {name}")
        if mode == "low" and limits_of(stage.demand, supply).hidden is None:
            found.append(f"which weights of {name} cost no time when streamed")
    return found


def _highest(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known, default=0) if len(known) == len(sizes) else None
