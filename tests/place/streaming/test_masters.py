"""Where masters are."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cases.common import virtual
from tightfit.card.host_memory import HostMemory
from tightfit.errors import MemoryShortage
from tightfit.place.streaming import masters as module
from tightfit.place.streaming.arena import Arena
from tightfit.place.streaming.layout import Layout
from tightfit.place.streaming.masters import Masters, Wish
from tightfit.place.streaming.pinned import Pins
from tightfit.units import KIB, MIB


@pytest.fixture
def wishes(tmp_path: Path) -> list[Wish]:
    """8 of 100 KiB each, mapped."""
    path = tmp_path / "w.safetensors"
    save_file({str(at): torch.randn(100, 256) for at in range(8)}, path)
    return [Wish.of([tensor]) for tensor in load_file(path).values()]


def all_pins(budget: int = MIB) -> Pins:
    return Pins(budget, register=lambda *_: True, unregister=lambda _: None)


def test_pins_that_are_short_go_to_some_spread_over_all(wishes: list[Wish]) -> None:
    """Beside the buffers that the others pass through."""
    pins = all_pins(500 * KIB)
    host = Masters(virtual("1MiB"), pins=pins)
    host.plan(wishes)
    held = [host.take(wish).pinned for wish in wishes]
    assert pins.bytes <= pins.budget
    assert held.count(True) == 3
    assert held[:4].count(True) in (1, 2)
    host.close()


def test_where_all_are_pinned_nothing_passes_buffers(wishes: list[Wish]) -> None:
    """Pinned are the masters and nothing else."""
    pins = all_pins()
    host = Masters(virtual("1MiB"), pins=pins)
    host.plan(wishes)
    masters = [host.take(wish) for wish in wishes]
    assert all(master.pinned for master in masters)
    assert pins.bytes == pins.asked == host.arena_bytes == 800 * KIB
    assert host.filed_bytes == 0
    host.close()


def test_without_being_told_there_is_as_much_room_as_the_host_has(
    wishes: list[Wish], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host that is nearly full most stay in their file."""
    memory = HostMemory(MIB, MIB, None, None)
    monkeypatch.setattr(module, "read_host_memory", lambda: memory)
    host = Masters(virtual("1MiB"))
    host.plan(wishes)
    masters = [host.take(wish) for wish in wishes]
    kinds = [master.whole is None for master in masters]
    assert host.arena_bytes <= MIB * 15 // 16
    assert 1 <= kinds.count(True) < 8
    assert host.filed_bytes == 100 * KIB * kinds.count(True)
    del masters
    assert host.arena_bytes == host.filed_bytes == 0
    host.close()


def test_what_is_in_memory_already_takes_none(wishes: list[Wish]) -> None:
    """It is packed one by one, and its own memory goes."""
    inside = [Wish.of([torch.randn(100, 256)]) for _ in range(8)]
    host = Masters(virtual("1MiB"), room=700 * KIB)
    host.plan(inside)
    assert all(host.take(wish).whole is not None for wish in inside)
    again = [Wish.of(host.take(wish).views) for wish in inside[:2]]
    host.plan(again)
    assert all(host.take(wish).whole is not None for wish in again)
    host.close()


def test_what_was_not_planned_for_is_read_where_there_is_no_room(wishes: list[Wish]) -> None:
    """In the order in which it comes."""
    host = Masters(virtual("1MiB"), room=250 * KIB)
    host.plan([Wish.of([torch.randn(1)])])
    masters = [host.take(wish) for wish in wishes[:4]]
    assert [master.whole is None for master in masters] == [False, False, True, True]
    masters.clear()
    assert host.take(wishes[4]).whole is not None
    host.close()


def test_what_cannot_be_read_where_it_lies_needs_room() -> None:
    """With gaps, it is copied; the shortage is told with its figures."""
    wish = Wish.of([torch.randn(200, 256)[:, ::2]])
    host = Masters(virtual("1MiB"), room=50 * KIB)
    with pytest.raises(MemoryShortage, match=r"Needs 100.*KiB; 50.*KiB is left of 50.*KiB"):
        host.take(wish)
    host.close()
    host = Masters(virtual("1MiB"), room=0)
    assert host.take(Wish.of([torch.randn(200, 256)])).whole is None
    host.close()


class Driver:
    """Knows what it holds, and which threads asked for it."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.threads: set[int] = set()

    def register(self, address: int, size: int) -> bool:
        assert address not in self.held
        self.threads.add(threading.get_ident())
        self.held[address] = size
        return True

    def pins(self, budget: int) -> Pins:
        return Pins(budget, register=self.register, unregister=self.held.pop)


def several() -> list[Wish]:
    return [Wish.of([torch.randn(100, 256)]) for _ in range(24)]


def test_whoever_packs_a_master_holds_it_in_place() -> None:
    """Several at once, none of them the caller, each in the order it was asked for."""
    driver, wishes = Driver(), several()
    host = Masters(virtual("1MiB"), pins=driver.pins(16 * MIB), room=64 * MIB)
    host.plan(wishes)
    masters = list(host.take_all(deque(wishes)))
    assert threading.get_ident() not in driver.threads
    assert all(master.pinned for master in masters)
    assert {master.buffer.data_ptr() for master in masters} == set(driver.held)
    for master, wish in zip(masters, wishes, strict=True):
        assert torch.equal(master.views[0], wish.tensors[0])
    for master in masters:
        host.release(master)
    assert not driver.held
    host.close()


@pytest.mark.parametrize("budget", [0, 500 * KIB, MIB])
def test_many_that_pack_keep_to_the_budget(budget: int) -> None:
    """And to what was planned: those that are held are spread over all."""
    driver, wishes = Driver(), several()
    pins = driver.pins(budget)
    host = Masters(virtual("1MiB"), pins=pins, room=64 * MIB)
    host.plan(wishes)
    masters = list(host.take_all(deque(wishes)))
    held = [at for at, master in enumerate(masters) if master.pinned]
    assert sum(driver.held.values()) <= pins.bytes <= budget
    assert bool(held) == (budget > 0)
    if held:
        assert held[0] < 12 <= held[-1]
    host.close()
    assert not driver.held


@pytest.mark.parametrize("taken", [0, 1, 5, 24])
def test_masters_that_were_packed_and_never_taken_are_let_go(taken: int) -> None:
    """Whoever stops in the middle has nothing held afterwards."""
    driver, wishes = Driver(), several()
    host = Masters(virtual("1MiB"), pins=driver.pins(16 * MIB), room=64 * MIB)
    host.plan(wishes)
    each = host.take_all(deque(wishes))
    found = [next(each) for _ in range(taken)]
    each.close()
    host.close()
    assert not driver.held
    assert not any(master.pinned for master in found)


def test_an_error_of_one_leaves_nothing_of_the_others_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system refuses memory in the middle."""
    driver, wishes = Driver(), several()
    host = Masters(virtual("1MiB"), pins=driver.pins(16 * MIB), room=64 * MIB)
    host.plan(wishes)
    plain = module.Arena

    def refusing(layout: Layout, tensors: tuple[torch.Tensor, ...], **given: Any) -> Arena:
        if tensors[0] is wishes[7].tensors[0]:
            raise MemoryShortage("Not enough host memory.")
        return plain(layout, tensors, **given)

    monkeypatch.setattr(module, "Arena", refusing)
    each = host.take_all(deque(wishes))
    found = []
    with pytest.raises(MemoryShortage):
        found.extend(next(each) for _ in wishes)
    monkeypatch.undo()
    host.close()
    assert not any(master.pinned for master in found)
    assert not driver.held
