"""A plan as JSON values, and as the error that says why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tightfit.errors import MemoryShortage
from tightfit.plan.stage import StagePlan, WayNeed
from tightfit.plan.supply import Supply
from tightfit.units import GIB, KIB, MIB, format_bytes

if TYPE_CHECKING:
    from tightfit.plan.plan import Plan

VERSION = 1


def at_least(size: int) -> str:
    """Like `format_bytes`, never less than `size`: what to ask for, so that it is enough."""
    for factor in (GIB, MIB, KIB):
        if size >= factor:
            tenth = factor / 10
            return format_bytes(int(-(-size // tenth) * tenth + 0.5))
    return format_bytes(size)


def shortage(plan: Plan) -> MemoryShortage:
    """Of the stage that needs most of those that do not fit, else of the host."""
    over = [stage for stage in plan.stages if not stage.fits]
    if over:
        return _card_shortage(plan, max(over, key=lambda stage: _cheapest(stage).least))
    return _host_shortage(plan)


def as_dict(plan: Plan) -> dict[str, Any]:
    """JSON values under stable keys."""
    supply = plan.supply
    return {
        "version": VERSION,
        "fits": plan.fits,
        "mode": plan.mode,
        "card": {
            "name": supply.card,
            "allocator": supply.allocator,
            "total_bytes": supply.total,
            "budget_bytes": supply.budget,
            "room_bytes": supply.room,
        },
        "rates": {
            name: {"per_second": rate.per_second, "source": rate.source}
            for name, rate in (
                ("link", supply.link),
                ("staged", supply.staged),
                ("disk", supply.disk),
                ("compute", supply.compute),
            )
        },
        "annexe": _annexe_dict(plan),
        "together": plan.together,
        "exact": plan.exact,
        "peak_allocated_bytes": plan.peak_allocated,
        "peak_reserved_bytes": plan.peak_reserved,
        "stages": [_stage_dict(stage) for stage in plan.stages],
        "host": plan.host.as_dict() if plan.host else None,
        "not_predicted": list(plan.not_predicted),
        "shortage": None if plan.fits else str(plan.shortage()),
    }


def _annexe_dict(plan: Plan) -> dict[str, Any] | None:
    """The second card has books of its own."""
    annexe = plan.supply.annexe
    if annexe is None:
        return None
    parked = max(plan.parked, default=0)
    return {
        "card": annexe.card,
        "total_bytes": annexe.total,
        "budget_bytes": annexe.budget,
        "room_bytes": annexe.room,
        "per_second": annexe.rate.per_second,
        "source": annexe.rate.source,
        "ledger": {
            "held": {"bytes": annexe.held, "source": "measured"},
            "weights_parked": {"bytes": parked, "source": "predicted"},
            "context": {"bytes": annexe.context.bytes, "source": annexe.context.source},
            "held_by_others": {
                "bytes": annexe.held_by_others.bytes,
                "source": annexe.held_by_others.source,
            },
            "reserve": {"bytes": annexe.reserve, "source": "measured"},
        },
    }


def _stage_dict(stage: StagePlan) -> dict[str, Any]:
    demand, residency, pace = stage.demand, stage.residency, stage.pace
    return {
        "stage": demand.stage,
        "model": demand.owner,
        "calls": demand.calls,
        "fits": stage.fits,
        "way": stage.way.name,
        "exact": stage.way.exact,
        "ways": [
            {
                "name": need.way.name,
                "exact": need.way.exact,
                "least_bytes": need.least,
                "whole_bytes": need.whole,
                "activations_bytes": need.way.activations.bytes,
                "fits": need.fits,
            }
            for need in stage.ways
        ],
        "weights_bytes": demand.weights,
        "resident_bytes": residency.resident_bytes if residency else None,
        "streamed_bytes": residency.streamed_bytes if residency else None,
        "resident": list(stage.resident),
        "streamed": list(stage.streamed),
        "must_stay": stage.must_stay,
        "ring": {
            "level": residency.ring.level,
            "slot_bytes": residency.ring.slot_bytes,
            "slots": residency.ring.slots,
        }
        if residency
        else None,
        "ledger": stage.ledger.as_dict(),
        "peak_allocated_bytes": stage.peak_allocated,
        "peak_reserved_bytes": stage.peak_reserved,
        "pace": {
            "moved_bytes": pace.moved_bytes,
            "compute_seconds": pace.compute_seconds,
            "copy_seconds": pace.copy_seconds,
            "limit_seconds": pace.limit_seconds,
            "seconds": pace.seconds,
            "at_least": pace.at_least,
            "overlaps": pace.overlaps,
            "binds": pace.binds,
            "source": pace.source,
        }
        if pace
        else None,
        "keeps_all_bytes": stage.keeps_all if stage.fits else None,
        "hides_copies_bytes": stage.hides_copies,
    }


def _card_shortage(plan: Plan, stage: StagePlan) -> MemoryShortage:
    supply = plan.supply
    cheapest = _cheapest(stage)
    usable = supply.room + supply.held
    return MemoryShortage(
        stage.demand.sentence,
        figures=(
            f"Needs {at_least(supply.held + cheapest.least)}; {format_bytes(usable)} can be used "
            f"on {supply.card} ({_whose(supply)})."
        ),
        tried=_tried(plan, stage),
        advice=_any_of(_advice(plan, cheapest)),
    )


def _host_shortage(plan: Plan) -> MemoryShortage:
    host = plan.host
    if host is None or plan.supply.host is None:
        raise ValueError("a plan that fits has no shortage")
    parts = [f"{format_bytes(plan.supply.host.total)} in all"]
    if plan.supply.host.cgroup_limit is not None:
        parts.append(f"limit of the process group {format_bytes(plan.supply.host.cgroup_limit)}")
    tried = ["weights in memory"]
    ways = ["more RAM"]
    if host.needs < sum({s.demand.owner: s.demand.weights for s in plan.stages}.values()):
        tried.append("weights left in their files")
    if any(not stage.demand.mapped for stage in plan.stages):
        ways.append("weights in a file of the dtype they are computed in, which can stay there")
    if host.activations.known:
        ways.append("a smaller or shorter input")
    ways.append("close other programs")
    return MemoryShortage(
        f"Not enough host memory to {plan.stages[0].demand.what or plan.stages[0].demand.stage}.",
        figures=(
            f"Needs {at_least(host.needs)}; {format_bytes(host.room)} of RAM can be used "
            f"({', '.join(parts)})."
        ),
        tried=tried,
        advice=_any_of(ways),
    )


def _cheapest(stage: StagePlan) -> WayNeed:
    return min(stage.ways, key=lambda need: need.least)


def _tried(plan: Plan, stage: StagePlan) -> list[str]:
    tried = []
    for need in stage.ways:
        if plan.mode != "none":
            tried.append(f"{need.way.name}, all weights resident ({at_least(need.whole)})")
        if plan.mode != "high" and need.least < need.whole:
            tried.append(f"{need.way.name}, weights streamed ({at_least(need.least)})")
    return tried


def _advice(plan: Plan, cheapest: WayNeed) -> list[str]:
    """What would help, and only what can."""
    supply, need = plan.supply, cheapest.least
    ways = []
    on_card = supply.room_of_card
    if need <= on_card:
        ways.append(f"a budget of {at_least(supply.held + need)} (--vram)")
    if plan.mode == "high":
        ways.append("--vram-mode auto, which streams what does not fit")
    if supply.reserve and need > on_card and need <= on_card + supply.reserve:
        ways.append("a smaller --reserve-vram")
    others = supply.held_by_others.known
    if others and need > on_card and need <= on_card + others + supply.reserve:
        ways.append("close the other programs (`tightfit doctor` lists them)")
    if need - cheapest.way.activations.known <= supply.room:
        ways.append("a smaller or shorter input")
    if need > on_card:
        ways.append("a larger card")
    return ways


def _any_of(ways: list[str]) -> str:
    return ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])}, or {ways[-1]}"


def _whose(supply: Supply) -> str:
    parts = [f"{format_bytes(supply.total)} in all"]
    if supply.budget < supply.total:
        parts.append(f"budget {format_bytes(supply.budget)}")
    if supply.reserve:
        parts.append(f"{format_bytes(supply.reserve)} kept free")
    if supply.held_by_others.known:
        parts.append(f"{format_bytes(supply.held_by_others.known)} held by other programs")
    if supply.context.known:
        parts.append(f"{format_bytes(supply.context.known)} for the device context")
    return ", ".join(parts)
