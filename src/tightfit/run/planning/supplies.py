"""From a card on paper, and this host, to the supply that the planner takes."""

from __future__ import annotations

from tightfit.card.host_memory import HostMemory
from tightfit.card.outlook import Outlook
from tightfit.plan.budget import Budget
from tightfit.plan.figure import UNKNOWN, UNKNOWN_RATE, Figure, Rate
from tightfit.plan.supply import Host, Supply

STAGED_SHARE = 0.16
"""Of the link's rate, what copies from memory that is not pinned get: 8.9 of 55.4 GB/s were
measured on an H200."""
COMPUTE_SHARE = 0.6
"""Of a card's peak, what whole networks get: FLUX.1-dev at 1024x1024 computes 0.76 of what an H200
does in bare matrix products, and those reach 0.8 of its peak."""


def supply_of(card: Outlook, amount: Budget, host: HostMemory | None) -> Supply:
    """What there is for a job that may use `amount` of `card`.

    `host` is this machine's memory; None is unknown.
    """
    others = Figure(card.held_by_others, "measured")
    link = staged = UNKNOWN_RATE
    if card.link is not None:
        measured = card.link_source == "measured"
        link = Rate(float(card.link), "measured" if measured else "table")
        staged = Rate(card.link * STAGED_SHARE, "table")
    if card.staged is not None:
        staged = Rate(float(card.staged), "measured")
    return Supply(
        card=card.name,
        total=card.total,
        budget=amount.budget,
        held_by_others=others if card.held_by_others is not None else UNKNOWN,
        context=Figure(card.context, "table" if card.context_source == "table" else "measured"),
        reserve=amount.reserve,
        allocator=card.allocator,
        link=link,
        staged=staged,
        disk=UNKNOWN_RATE if card.disk is None else Rate(float(card.disk), "measured"),
        compute=UNKNOWN_RATE if card.flops is None else Rate(card.flops * COMPUTE_SHARE, "table"),
        host=None if host is None else _host(host),
    )


def _host(memory: HostMemory) -> Host:
    group = memory.group
    return Host(
        total=memory.ram,
        available=memory.ram_available,
        cgroup_limit=group.limit if group is not None else None,
        cgroup_used=(group.held or 0) if group is not None else 0,
        pin_limit=memory.pinnable,
    )
