"""One card of a check-up: whose figures they are, and how its context is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.card.stub_nvml import StubDevice, StubNvml
from tightfit.card import Card, Reading, nvml, open_card
from tightfit.card.base import Observer
from tightfit.errors import UsageError
from tightfit.run.checkup import CardCheck, cards
from tightfit.run.checkup.cards import Hardware, check_card, check_cards
from tightfit.settings import Settings
from tightfit.units import GIB, MIB

SETTINGS = Settings(Path("/nowhere"), None)
READING = Reading(
    total=12 * GIB,
    allocated=8 * MIB,
    reserved=22 * MIB,
    peak_allocated=8 * MIB,
    peak_reserved=22 * MIB,
    context=None,
    held_by_others=None,
    free=8 * GIB,
)
HARDWARE = Hardware("NVIDIA GeForce RTX 3060", "aaaa1111", "00000000:01:00.0", (8, 6))
OTHER = StubDevice("NVIDIA GeForce RTX 4090", "GPU-bbbb2222", "00000000:81:00.0", 24 * GIB)


class StubCard(Card):
    """Counts as a CUDA card does; its tensors are on the host."""

    name, kind, allocator = "cuda:0", "cuda", "native"
    device = torch.device("cpu")

    def __init__(self, reading: Reading = READING) -> None:
        self.reading = reading
        self.trims = 0

    def read(self) -> Reading:
        return self.reading

    def reset_peaks(self) -> None:
        raise NotImplementedError

    def drop_scratch(self) -> None:
        raise NotImplementedError

    def trim(self) -> None:
        self.trims += 1

    def sync(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError

    def cap(self, budget: int) -> AbstractContextManager[None]:
        raise NotImplementedError(budget)

    def observe(self, observer: Observer) -> AbstractContextManager[None]:
        raise NotImplementedError(observer)


def check(card: Card, before: nvml.Answer, after: nvml.Answer) -> CardCheck:
    """With the driver's answers before the card was opened, and after."""
    return check_card(
        card,
        before,
        settings=SETTINGS,
        host_room=GIB,
        ask=lambda: after,
        identify=lambda _: HARDWARE,
    )


def answers(*frees: int, reverse: bool = False) -> Iterator[nvml.Answer]:
    """One for each free figure of the card; another device stands before or after it."""
    for free in frees:
        own = StubDevice(free=free)
        yield nvml.ask(StubNvml(OTHER, own) if reverse else StubNvml(own, OTHER))


@pytest.mark.parametrize("reverse", [False, True], ids=["by bus", "reversed"])
def test_d02_figures_belong_to_the_card_in_use(reverse: bool) -> None:
    """Whatever number the management library gives it."""
    before, after = answers(9 * GIB, 8 * GIB, reverse=reverse)
    found = check(StubCard(), before, after)
    assert found.device == int(reverse)
    assert found.hardware == "NVIDIA GeForce RTX 3060"
    assert (found.table, found.capability) == ("rtx-3060", "8.6")


def test_a_context_that_the_driver_hides_is_what_the_device_lost() -> None:
    """Between two looks, less what the allocator took; the rest is held by others."""
    before, after = answers(9 * GIB, 9 * GIB - 22 * MIB - 300 * MIB)
    found = check(StubCard(), before, after)
    assert found.context_bytes == 300 * MIB
    assert found.context_source == "the device before and after it was opened"
    others = 12 * GIB - 8 * GIB - 22 * MIB - 300 * MIB
    assert found.held_by_others_bytes == others


@pytest.mark.parametrize("after", [nvml.Answer(), next(answers(10 * GIB))], ids=["none", "more"])
def test_a_context_that_cannot_be_known_is_unknown(after: nvml.Answer) -> None:
    """No driver, or another program that gave memory back meanwhile: None."""
    found = check(StubCard(), next(answers(9 * GIB)), after)
    assert found.context_bytes is found.context_source is found.held_by_others_bytes is None


def test_a_context_that_the_driver_tells_is_taken_as_it_is() -> None:
    """The list of processes knows best."""
    before, after = answers(9 * GIB, 8 * GIB)
    told = replace(READING, context=400 * MIB, held_by_others=3 * GIB)
    found = check(StubCard(told), before, after)
    assert (found.context_bytes, found.held_by_others_bytes) == (400 * MIB, 3 * GIB)
    assert found.context_source == "the driver's list of processes"


def test_l07_used_and_free_are_the_total_and_the_lines_explain_what_is_used() -> None:
    """Allocated within reserved; reserved, context and others make up what is used."""
    before, after = answers(9 * GIB, 9 * GIB - 22 * MIB - 300 * MIB)
    found = check(StubCard(), before, after)
    assert found.used_bytes is not None
    assert found.used_bytes + (found.free_bytes or 0) == found.total_bytes
    lines = (found.reserved_bytes, found.context_bytes, found.held_by_others_bytes)
    assert sum(line or 0 for line in lines) == found.used_bytes
    assert (found.allocated_bytes or 0) <= (found.reserved_bytes or 0)


def test_what_was_taken_to_measure_is_given_back() -> None:
    """The allocator's cache is trimmed afterwards."""
    card = StubCard()
    check(card, *answers(9 * GIB, 8 * GIB))
    assert card.trims == 1


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        (SETTINGS, "PyTorch's default"),
        (replace(SETTINGS, allocator="native", allocator_words="V=backend:native"), "V=backend:"),
        (replace(SETTINGS, allocator_words="V=max_split_size_mb:64"), "PyTorch's default"),
    ],
)
def test_who_chose_the_allocator_is_said(settings: Settings, chosen: str) -> None:
    """The environment, if it names one."""
    found = check_card(
        StubCard(), nvml.Answer(), settings=settings, host_room=GIB, identify=lambda _: None
    )
    assert (found.allocator_from or "").startswith(chosen)
    assert found.device is None


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("virtual:rtx-3060", "rtx-3060"),
        ("virtual:2xrtx-3060,others=1GiB", "rtx-3060"),
        ("virtual:RTX-4060-Ti-16GB", "rtx-4060-ti-16gb"),
        ("virtual:2x64MiB", None),
        ("virtual:6GiB", None),
    ],
)
def test_a_virtual_card_has_the_link_of_the_table(name: str, table: str | None) -> None:
    """Nothing is measured on it, and nothing allocated."""
    for found in check_cards(name, nvml.Answer(), settings=SETTINGS, host_room=GIB):
        assert found.simulated
        assert found.table == table
        assert (found.link.table_bytes_per_s is None) == (table is None)
        assert found.link.pinned_bytes_per_s is None
        assert found.used_bytes == (found.context_bytes or 0) + (found.held_by_others_bytes or 0)


def test_a_card_that_cannot_be_opened_is_one_with_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others are still looked at; a name that is no card is refused."""

    def open_some(name: str) -> tuple[Card, ...]:
        if name == "cuda:1":
            raise RuntimeError("CUDA error: out of memory\nCompile with DEVICE_ASSERTIONS.")
        return (open_card("cpu"),)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cards, "open_cards", open_some)
    good, bad = check_cards(None, nvml.Answer(), settings=SETTINGS, host_room=GIB)
    assert good.problem is None
    assert (bad.name, bad.problem) == ("cuda:1", "CUDA error: out of memory")
    monkeypatch.undo()
    with pytest.raises(UsageError, match="is unknown"):
        check_cards("vcard:0", nvml.Answer(), settings=SETTINGS, host_room=GIB)


@pytest.mark.gpu
def test_a_real_card_is_matched_with_the_driver_s_device() -> None:
    """By UUID: the same memory, and a context that is known either way."""
    before = nvml.ask()
    (found,) = check_cards("cuda:0", before, settings=SETTINGS, host_room=4 * GIB)
    assert found.problem is None
    assert found.device is not None
    assert found.link.pinned_bytes_per_s
    assert found.total_bytes is not None
    total = before.devices[found.device].total
    assert total is not None
    assert abs(total - found.total_bytes) < 0.05 * total
