"""From a card on paper, and this host, to what the planner takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tightfit.card.host_memory import Group, HostMemory
from tightfit.card.outlook import look
from tightfit.plan.budget import Budget
from tightfit.run.planning.supplies import COMPUTE_SHARE, STAGED_SHARE, supply_of
from tightfit.units import GIB

HOST = HostMemory(32 * GIB, 20 * GIB, None, None)


def test_a_card_of_the_table_supplies_its_rates_and_says_so() -> None:
    """Compute is a share of the peak, copies that are not pinned a share of the link."""
    card = look("virtual:rtx-3060")
    supply = supply_of(card, Budget(6 * GIB, GIB), HOST)
    assert card.link is not None
    assert card.flops is not None
    assert (supply.link.per_second, supply.link.source) == (card.link, "table")
    assert supply.staged.per_second == pytest.approx(card.link * STAGED_SHARE)
    assert supply.compute.per_second == pytest.approx(card.flops * COMPUTE_SHARE)
    assert (supply.budget, supply.reserve, supply.total) == (6 * GIB, GIB, 12 * GIB)
    assert (supply.context.bytes, supply.context.source) == (card.context, "table")
    assert supply.room == min(6 * GIB, 12 * GIB - card.context - GIB)


def test_what_was_measured_is_called_measured() -> None:
    """Link, other copies, disk and context, each on its own."""
    card = replace(
        look("virtual:rtx-3060"),
        link=10**9,
        link_source="measured",
        staged=10**8,
        disk=10**7,
        context_source="measured",
    )
    supply = supply_of(card, Budget(6 * GIB), HOST)
    assert [
        (rate.per_second, rate.source) for rate in (supply.link, supply.staged, supply.disk)
    ] == [(10**9, "measured"), (10**8, "measured"), (10**7, "measured")]
    assert supply.context.source == "measured"


def test_what_is_not_known_stays_unknown() -> None:
    """A bare card has no rates, a device may not say what others hold, a host may be unknown."""
    bare = supply_of(replace(look("virtual:6GiB"), held_by_others=None), Budget(6 * GIB), None)
    rates = (bare.link, bare.staged, bare.disk, bare.compute)
    assert [rate.per_second for rate in rates] == [None] * 4
    assert bare.held_by_others.bytes is None
    assert bare.host is None


def test_host_memory_is_what_the_machine_and_the_group_leave() -> None:
    """The group's page cache can be given up."""
    group = Group(limit=8 * GIB, used=5 * GIB, cache=2 * GIB)
    supply = supply_of(look("virtual:6GiB"), Budget(GIB), replace(HOST, group=group))
    assert supply.host is not None
    assert supply.host.room == 5 * GIB
    alone = supply_of(look("virtual:6GiB"), Budget(GIB), HOST)
    assert alone.host is not None
    assert alone.host.room == 20 * GIB
