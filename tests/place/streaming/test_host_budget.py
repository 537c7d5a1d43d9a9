"""What may be taken of the host."""

from __future__ import annotations

import platform

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tightfit.card.host_memory import Group, HostMemory
from tightfit.place.streaming.host_budget import host_room, pin_budget
from tightfit.units import GIB

SIZES = st.integers(0, 2**44)


@given(SIZES, SIZES, st.none() | st.builds(Group, SIZES, SIZES, SIZES), st.none() | SIZES)
def test_neither_the_machine_nor_the_group_is_filled(
    ram: int, available: int, group: Group | None, locked: int | None
) -> None:
    """With what the group holds already, it stays within its limit; what is pinned is in that."""
    memory = HostMemory(ram, min(ram, available), group, locked)
    room = host_room(memory)
    assert 0 <= pin_budget(memory) <= room <= memory.ram_available
    if group is not None and room:
        assert group.held is not None
        assert group.held + room <= group.limit
    if memory.available >= 2 * GIB:
        assert room >= memory.available - 2 * GIB


@pytest.mark.parametrize(
    ("system", "release", "share"),
    [
        ("Linux", "6.1.0", 1),
        ("Linux", "5.15.90.1-microsoft-standard-WSL2", 2),
        ("Windows", "11", 2),
    ],
)
def test_windows_lets_half_of_the_memory_be_pinned(
    monkeypatch: pytest.MonkeyPatch, system: str, release: str, share: int
) -> None:
    """Also beneath Linux."""
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "release", lambda: release)
    memory = HostMemory(64 * GIB, 60 * GIB, None, None)
    assert pin_budget(memory) == (58 if share == 1 else 32) * GIB


@pytest.mark.parametrize("hip", [None, "6.2"])
def test_the_limit_of_locked_memory_counts_where_the_driver_obeys_it(
    monkeypatch: pytest.MonkeyPatch, hip: str | None
) -> None:
    """AMD's does, NVIDIA's does not."""
    monkeypatch.setattr(torch.version, "hip", hip)
    memory = HostMemory(64 * GIB, 60 * GIB, None, 8 * GIB)
    assert pin_budget(memory) == (58 if hip is None else 8) * GIB
