"""What a card and the host have to give."""

from __future__ import annotations

from tightfit.plan.figure import Figure
from tightfit.plan.supply import Host, Supply
from tightfit.units import GIB, MIB


def test_a03_what_others_hold_comes_off_the_card() -> None:
    """24 of 64 MiB are held elsewhere: 40 are left, 36 with a reserve of 4."""
    supply = Supply("v", 64 * MIB, 64 * MIB, held_by_others=Figure(24 * MIB, "measured"))
    assert supply.room == 40 * MIB
    kept = Supply("v", 64 * MIB, 64 * MIB, held_by_others=supply.held_by_others, reserve=4 * MIB)
    assert kept.room == 36 * MIB


def test_the_room_of_the_card_does_not_know_the_budget() -> None:
    """It is what a larger --vram could give."""
    supply = Supply("v", 64 * MIB, 10 * MIB, held=2 * MIB, context=Figure(4 * MIB))
    assert supply.room == 8 * MIB
    assert supply.room_of_card == 58 * MIB


def test_host_room_is_bounded_by_the_group_of_processes() -> None:
    """32 GiB may be free on the machine, and a container may have 8 of which 3 are used."""
    assert Host(64 * GIB, 32 * GIB).room == 32 * GIB
    assert Host(64 * GIB, 32 * GIB, cgroup_limit=8 * GIB, cgroup_used=3 * GIB).room == 5 * GIB
    assert Host(64 * GIB, 32 * GIB, cgroup_limit=8 * GIB, cgroup_used=9 * GIB).room == 0
