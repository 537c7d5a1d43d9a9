"""A plan in one screenful, for people."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from tightfit.plan.describe import at_least
from tightfit.plan.figure import Figure, Rate
from tightfit.plan.ledger import CARD
from tightfit.plan.stage import StagePlan
from tightfit.plan.streaming.residency import Residency
from tightfit.units import format_bytes

if TYPE_CHECKING:
    from tightfit.plan.plan import Plan

WIDTH = 100
HEIGHT = 40
_NAMES = {
    "held": "held already",
    "weights_resident": "weights, resident",
    "weights_idle": "weights, idle",
    "ring": "ring",
    "conversion": "conversion",
    "scratch": "scratch",
    "input": "input",
    "activations": "activations",
    "library_workspaces": "library workspaces",
    "slack": "slack",
    "context": "context",
    "held_by_others": "held by others",
    "reserve": "reserve",
}
_LABEL = 20
_WIDE = 20
_NARROW = 13
_MOST_WIDE = (WIDTH - _LABEL) // _WIDE
_MOST = (WIDTH - _LABEL) // _NARROW


def explain(plan: Plan) -> str:
    """At most `HEIGHT` lines of `WIDTH` columns; many stages are said in fewer words."""
    lines: list[str] = []
    for most in (3, 2, 1):
        lines = _lines(plan, most)
        if len(lines) <= HEIGHT:
            break
    return "\n".join(line[:WIDTH].rstrip() for line in lines[:HEIGHT])


def _lines(plan: Plan, most: int) -> list[str]:
    """With at most so many lines for each sentence."""
    shown = _shown(plan)
    lines = [*_card(plan), "", *_table(plan, shown), ""]
    for stage in shown:
        lines += _sentences(plan, stage, most)
    if len(shown) < len(plan.stages):
        lines.append(f"{len(plan.stages) - len(shown)} stages that need less are not shown.")
    lines += [*_annexe(plan), *_host(plan)]
    if plan.not_predicted:
        unknown = f"Not predicted, and in no sum: {', '.join(plan.not_predicted)}."
        lines += _wrapped(unknown, most)
    if not plan.fits:
        for line in str(plan.shortage()).splitlines():
            lines += _wrapped(line, most)
    return lines


def _shown(plan: Plan) -> list[StagePlan]:
    """As many as have room side by side: those that take most, in the order of the job."""
    largest = sorted(
        range(len(plan.stages)), key=lambda at: (plan.stages[at].fits, -plan.stages[at].ledger.ours)
    )
    return [plan.stages[at] for at in sorted(largest[:_MOST])]


def _card(plan: Plan) -> list[str]:
    supply = plan.supply
    answer = "fits" if plan.fits else "does not fit"
    if plan.fits and any(stage.ledger.unknown for stage in plan.stages):
        answer = "fits, as far as it is predicted"
    return _wrapped(
        f"{supply.card}: {format_bytes(supply.total)} in all, budget "
        f"{format_bytes(supply.budget)}, {format_bytes(supply.room)} free for this job; allocator "
        f"{supply.allocator}, mode {plan.mode}: {answer}.",
        2,
    )


def _table(plan: Plan, shown: list[StagePlan]) -> list[str]:
    """The ledgers side by side, each figure with its source."""
    wide = len(shown) <= _MOST_WIDE
    width = _WIDE if wide else _NARROW
    lines = []
    if len(plan.stages) > 1:
        heads = [_head(stage.demand.stage, width - 1) for stage in shown]
        lines.append(" " * _LABEL + "".join(head.rjust(width) for head in heads))
    for name in _NAMES:
        figures = [stage.ledger.lines.get(name, Figure(0)) for stage in shown]
        if all(figure.bytes == 0 for figure in figures) and name != "weights_resident":
            continue
        cells = "".join(_cell(figure, wide=wide).rjust(width) for figure in figures)
        lines.append(_NAMES[name].ljust(_LABEL) + cells)
    ours = "".join(_sum(stage.ledger.ours, wide=wide).rjust(width) for stage in shown)
    lines.append("sum for the budget".ljust(_LABEL) + ours)
    if any(stage.ledger.lines[name].known for stage in shown for name in CARD):
        all_ = "".join(_sum(stage.ledger.all, wide=wide).rjust(width) for stage in shown)
        lines.append("sum for the card".ljust(_LABEL) + all_)
    if not wide:
        lines.append("m measured, p predicted, t from a table, ? not predicted")
    return lines


def _head(stage: str, width: int) -> str:
    """The stage, or where that is too long what it is done with: two stages differ in that."""
    if len(stage) <= width:
        return stage
    inside = stage.partition("(")[2].rstrip(")") or stage
    return inside if len(inside) <= width else f"{inside[: width - 1]}…"


def _cell(figure: Figure, *, wide: bool) -> str:
    if figure.bytes is None:
        return "not predicted" if wide else "?"
    if figure.bytes == 0:
        return "-" + (" " * 10 if wide else "  ")
    source = f"{figure.source:<9}" if wide else figure.source[0]
    return f"{_short(figure.bytes)} {source}"


def _short(size: int) -> str:
    """At most nine characters: ``1004.4 MiB`` would touch its neighbour."""
    text = format_bytes(size)
    return text if len(text) <= 9 else f"{text.partition('.')[0]} {text.rpartition(' ')[2]}"


def _sum(size: int, *, wide: bool) -> str:
    return _short(size) + (" " * 10 if wide else "  ")


def _sentences(plan: Plan, stage: StagePlan, most: int) -> list[str]:
    name = "" if len(plan.stages) == 1 else f"{stage.demand.stage}: "
    if stage.residency is None:
        least = min(need.least for need in stage.ways)
        lacking = f"{at_least(least - stage.room)} more than there is"
        return _wrapped(f"{name}needs {at_least(least)} at least, {lacking}.", 1)
    parts = [_way(stage), _where(stage), *_time(plan, stage)]
    lines = _wrapped(name + "; ".join(part for part in parts if part) + ".", most)
    return lines + (_changes(stage) if most > 1 else [])


def _way(stage: StagePlan) -> str:
    whole = stage.ways[0]
    kind = "" if stage.way.exact else ", not exact"
    if len(stage.ways) < 2 and whole.way.name == "whole":
        return ""
    if whole.fits:
        return f"{stage.way.name}{kind}"
    return f"{stage.way.name}{kind} ({whole.way.name} needs {format_bytes(whole.least)} at least)"


def _where(stage: StagePlan) -> str:
    residency = stage.residency
    assert residency is not None
    if not residency.streamed:
        return f"all {format_bytes(residency.resident_bytes)} of weights stay{_packed(residency)}"
    ring, count = residency.ring, len(residency.pieces)
    what = "block" if ring.level == "block" else "module"
    slot = "slice of rows" if ring.level == "rows" else what
    text = (
        f"{len(residency.resident)} of {count} {what}s stay, {len(residency.streamed)} are "
        f"streamed through {ring.slots} slot{'s' if ring.slots > 1 else ''} of a {slot} "
        f"({format_bytes(ring.slot_bytes)})"
    )
    text += _packed(residency)
    return text if ring.overlaps else f"{text}, nothing is copied ahead"


def _packed(residency: Residency) -> str:
    """What is stored in fewer bytes than it is used in."""
    pieces = [piece for piece in residency.pieces if piece.packed]
    if not pieces:
        return ""
    stored = sum(piece.bytes for piece in pieces)
    used = sum(piece.converted for piece in pieces)
    return f"; {len(pieces)} are packed ({format_bytes(stored)} instead of {format_bytes(used)})"


def _time(plan: Plan, stage: StagePlan) -> list[str]:
    pace = stage.pace
    if pace is None or pace.seconds is None:
        return []
    each = "a step" if stage.demand.calls > 1 else "in all"
    took = f"{seconds(pace.seconds)} {each}"
    if pace.at_least:
        took = f"at least {took}"
    if seconds(pace.limit_seconds or 0) != seconds(pace.seconds):
        took = f"{took} (the limit is {seconds(pace.limit_seconds or 0)})"
    if not pace.moved_bytes:
        return [f"compute binds: {took} ({pace.source})"]
    copying = f"{format_bytes(pace.moved_bytes)} copied {each}"
    if plan.supply.link.per_second is not None:
        copying += f" at {_rate(plan.supply.link)}"
    if pace.binds is None:
        return [f"{copying}: {took}"]
    other = (
        f"computing takes {seconds(pace.compute_seconds or 0)}"
        if pace.binds == "link"
        else f"copying takes {seconds(pace.copy_seconds or 0)}"
    )
    return [copying, f"{'the link' if pace.binds == 'link' else 'compute'} binds: {took}, {other}"]


def _changes(stage: StagePlan) -> list[str]:
    changes = []
    if stage.hides_copies is not None:
        changes.append(f"+{at_least(stage.hides_copies)}: streaming stops costing time")
    if stage.keeps_all:
        changes.append(f"+{at_least(stage.keeps_all)} keeps all weights resident")
    return [f"  {'; '.join(changes)}."] if changes else []


def _annexe(plan: Plan) -> list[str]:
    annexe = plan.supply.annexe
    if annexe is None:
        return []
    parked = max(plan.parked, default=0)
    rate = f" at {_rate(annexe.rate)}" if annexe.rate.per_second is not None else ""
    return _wrapped(
        f"On {annexe.card}: {format_bytes(parked)} of what streams lies there and is copied from "
        f"there{rate}; {format_bytes(annexe.room)} of its budget of {format_bytes(annexe.budget)} "
        "can be had for it.",
        2,
    )


def _host(plan: Plan) -> list[str]:
    host = plan.host
    if host is None:
        return []
    taken = host.masters + host.pinned_real
    if not taken and not host.mapped and not host.activations.known:
        return []
    parts = [f"{format_bytes(taken)} of {format_bytes(host.room)}"]
    if host.pinned_asked:
        parts.append(
            f"pinned {format_bytes(host.pinned_real)} of {format_bytes(host.pinned_asked)} asked"
        )
    if host.mapped:
        parts.append(f"{format_bytes(host.mapped)} stay in their files")
    if host.activations.known:
        parts.append(f"activations {format_bytes(host.activations.known)}")
    return _wrapped(f"Host memory: weights take {', '.join(parts)}.", 2)


def _rate(rate: Rate) -> str:
    return f"{(rate.per_second or 0) / 1e9:.1f} GB/s ({rate.source})"


def seconds(value: float) -> str:
    """A time for people: ``0.72 s``, ``12 ms``, ``95 s``."""
    if value >= 10:
        return f"{value:.0f} s"
    if value >= 0.1:
        return f"{value:.2f} s"
    return f"{value * 1000:.0f} ms" if value >= 0.001 else "under 1 ms"


def _wrapped(text: str, most: int) -> list[str]:
    """At most so many lines; what goes on is indented."""
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", max_lines=most, placeholder=" …")
