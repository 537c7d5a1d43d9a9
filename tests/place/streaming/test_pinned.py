"""Host memory that is held in place."""

from __future__ import annotations

from mmap import PAGESIZE

import pytest
import torch

from tightfit.place.streaming.arena import Arena
from tightfit.place.streaming.layout import Layout
from tightfit.place.streaming.memory import mapping
from tightfit.place.streaming.pinned import Once, Pins
from tightfit.units import MIB


class Driver:
    """Refuses when it is told to, and knows what it holds."""

    def __init__(self, refuses: tuple[int, ...] = ()) -> None:
        self.held: dict[int, int] = {}
        self.asked = 0
        self._refuses = refuses

    def register(self, address: int, size: int) -> bool:
        self.asked += 1
        if self.asked in self._refuses:
            return False
        self.held[address] = size
        return True

    def unregister(self, address: int) -> None:
        del self.held[address]


def test_the_budget_bounds_what_is_held() -> None:
    """What does not fit is refused without asking; a smaller one after it may fit."""
    driver = Driver()
    pins = Pins(10 * PAGESIZE, register=driver.register, unregister=driver.unregister)
    buffers = [mapping(size * PAGESIZE) for size in (6, 5, 4, 1)]
    assert [pins.hold(buffer) for buffer in buffers] == [True, False, True, False]
    assert (pins.bytes, pins.refused, driver.asked) == (10 * PAGESIZE, 2, 2)
    assert pins.refused_bytes == 6 * PAGESIZE
    pins.release(buffers[0])
    assert pins.bytes == 4 * PAGESIZE
    assert list(driver.held.values()) == [4 * PAGESIZE]


def test_whole_pages_are_held() -> None:
    """What was asked for and what it takes are both known; the budget bounds what it takes."""
    driver = Driver()
    pins = Pins(3 * PAGESIZE, register=driver.register, unregister=driver.unregister)
    buffers = [mapping(size) for size in (1, PAGESIZE + 1, 1)]
    assert [pins.hold(buffer) for buffer in buffers] == [True, True, False]
    assert (pins.asked, pins.bytes) == (PAGESIZE + 2, 3 * PAGESIZE)
    for buffer in buffers[:2]:
        pins.release(buffer)
    assert (pins.asked, pins.bytes, driver.held) == (0, 0, {})


def test_a09_buffers_are_held_in_their_own_size() -> None:
    """33 MiB and 20 of 5 under 120: all of the first and 17 more, where powers of two fit 8."""
    driver = Driver()
    pins = Pins(120 * MIB, register=driver.register, unregister=driver.unregister)
    buffers = [mapping(size * MIB) for size in (33, *[5] * 20)]
    held = [pins.hold(buffer) for buffer in buffers]
    assert held.count(True) == 18
    assert pins.bytes == pins.asked == sum(driver.held.values()) == 118 * MIB <= pins.budget
    assert pins.refused_bytes == 15 * MIB


def test_a_refusal_of_the_driver_is_no_error() -> None:
    """The third of five: the others are held."""
    driver = Driver(refuses=(3,))
    pins = Pins(10**6, register=driver.register, unregister=driver.unregister)
    held = [pins.hold(mapping(10)) for _ in range(5)]
    assert held == [True, True, False, True, True]
    assert (pins.asked, pins.bytes, pins.refused) == (40, 4 * PAGESIZE, 1)


def test_without_a_driver_nothing_is_held() -> None:
    """Nor of an empty buffer, whatever the driver says."""
    assert not Pins.none().hold(torch.zeros(10, dtype=torch.uint8))
    driver = Driver()
    pins = Pins(10, register=driver.register, unregister=driver.unregister)
    assert not pins.hold(torch.empty(0, dtype=torch.uint8))
    assert not driver.asked


@pytest.mark.gpu
def test_cuda_holds_our_own_memory_and_leaves_no_error_behind() -> None:
    """Held twice is refused by the driver; the next kernel runs, and copies are pinned ones."""
    tensors = [torch.arange(2**20, dtype=torch.float32)]
    arena = Arena(Layout.of(tensors), tensors)
    pins = Pins.cuda(2**30)
    assert pins.hold(arena.buffer)
    assert arena.buffer.is_pinned()
    assert not pins.hold(arena.buffer)
    moved = arena.views[0].to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(moved.cpu(), tensors[0])
    pins.release(arena.buffer)
    assert not arena.buffer.is_pinned()


def test_what_two_hold_is_held_once_and_let_go_by_the_last() -> None:
    """By address; what is refused is not held by anybody."""
    held: list[int] = []
    once = Once()

    def register(address: int, size: int) -> bool:
        assert address not in held
        if size:
            held.append(address)
        return bool(size)

    hold, leave = once.holding(register), once.leaving(held.remove)
    assert [hold(4096, 1), hold(4096, 1), hold(8192, 1), hold(12288, 0)] == [True] * 3 + [False]
    assert held == [4096, 8192]
    leave(4096)
    assert held == [4096, 8192]
    leave(4096)
    assert held == [8192]
    assert hold(4096, 1)
    assert held == [8192, 4096]
