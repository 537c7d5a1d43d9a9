"""The host's own memory as a card."""

from __future__ import annotations

import pytest
import torch

from tightfit.card import host, open_card
from tightfit.card.host_memory import Group, HostMemory
from tightfit.units import GIB, MIB


def test_what_cannot_be_known_is_unknown() -> None:
    """No allocator keeps books of the host: None, never 0."""
    reading = open_card("cpu").read()
    assert reading.allocated is reading.reserved is reading.peak_allocated is None
    assert reading.slack is None
    assert reading.held_by_others is not None


def test_the_total_is_the_smaller_of_ram_and_the_group_s_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container's limit counts."""
    for group, total in ((None, 8 * GIB), (Group(64 * MIB), 64 * MIB), (Group(GIB * 9), 8 * GIB)):
        memory = HostMemory(8 * GIB, 6 * GIB, group, None)
        monkeypatch.setattr(host, "read_host_memory", lambda memory=memory: memory)
        assert open_card("cpu").read().total == total


def test_what_others_hold_of_a_large_machine_is_not_taken_from_a_small_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others count only where they leave less than the limit."""
    group = Group(16 * GIB, used=0)
    for available, others in ((28 * GIB, 0), (4 * GIB, 12 * GIB)):
        memory = HostMemory(128 * GIB, available, group, None)
        monkeypatch.setattr(host, "read_host_memory", lambda memory=memory: memory)
        held = open_card("cpu").read().held_by_others
        assert held == pytest.approx(others, abs=4 * GIB)
        assert (held == 0) == (others == 0)


def test_a_card_of_the_host_does_nothing_where_nothing_can_be_done() -> None:
    """Capping, trimming, waiting and checking are allowed and change nothing."""
    card = open_card("cpu")
    with card.cap(1):
        assert torch.ones(3).sum().item() == 3
    card.reset_peaks()
    card.trim()
    card.sync()
    card.check()
    assert card.supports(torch.bfloat16)


def test_memory_of_the_process_is_observed() -> None:
    """Looked at on entry and on exit at least, as one figure for both."""
    seen: list[tuple[int, int]] = []
    with open_card("cpu").observe(lambda *figures: seen.append(figures)):
        pass
    assert len(seen) >= 2
    assert all(allocated == reserved > MIB for allocated, reserved in seen)


def test_a_generator_of_the_host_is_seeded() -> None:
    """The same seed draws the same numbers."""
    card = open_card("cpu")
    assert torch.equal(*[torch.randn(4, generator=card.generator(7)) for _ in "ab"])
