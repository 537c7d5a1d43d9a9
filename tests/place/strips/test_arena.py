"""The host memory of strips."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tightfit.card import open_card
from tightfit.card.base import Card
from tightfit.card.host_memory import Group, HostMemory
from tightfit.errors import MemoryShortage
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.streaming.host_budget import host_room
from tightfit.place.streaming.pinned import Pins
from tightfit.place.strips import arena as module
from tightfit.place.strips.arena import HostArena
from tightfit.units import GIB, MIB

SMAPS = Path("/proc/self/smaps")
HOST = HostMemory(16 * GIB, 12 * GIB, None, None)


class Driver:
    """Holds within a limit, in powers of two where it is told to round."""

    def __init__(self, limit: int = GIB, *, rounds: bool = False) -> None:
        self.held: dict[int, int] = {}
        self.limit, self.rounds = limit, rounds

    def register(self, address: int, size: int) -> bool:
        real = 1 << (size - 1).bit_length() if self.rounds else size
        if sum(self.held.values()) + real > self.limit:
            return False
        self.held[address] = real
        return True

    def unregister(self, address: int) -> None:
        del self.held[address]

    def pins(self, budget: int = GIB) -> Pins:
        return Pins(budget, register=self.register, unregister=self.unregister)


def mapped_at(address: int) -> tuple[str, list[str]]:
    """Permissions and flags of the mapping that an address lies in."""
    kind = ""
    for line in SMAPS.read_text(encoding="utf-8").splitlines():
        words = line.split()
        first, dash, end = words[0].partition("-")
        if dash:
            kind = words[1] if int(first, 16) <= address < int(end, 16) else ""
        elif kind and words[0] == "VmFlags:":
            return kind, words[1:]
    raise AssertionError("not mapped")


@pytest.fixture(name="card", params=["cpu", "virtual:1MiB"])
def opened(request: pytest.FixtureRequest) -> Card:
    """Cards that this machine has."""
    return open_card(request.param)


def test_views_share_one_buffer(card: Card) -> None:
    """What is written through one of them is in the bytes, and in a view of another shape."""
    with HostArena(1000, card) as arena:
        assert (arena.buffer.dtype, arena.buffer.shape) == (torch.uint8, (1000,))
        assert arena.buffer.eq(0).all()
        one, other = arena.view(0, (5, 8), torch.bfloat16), arena.view(80, (3, 4), torch.float32)
        one.fill_(1)
        other.copy_(torch.arange(12.0).view(3, 4))
        assert one.is_contiguous()
        assert arena.view(0, (40,), torch.bfloat16).eq(1).all()
        assert arena.view(80, (12,), torch.float32).tolist() == list(range(12))
        assert arena.buffer[128:].eq(0).all()


@given(
    st.integers(-8, 80),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from([torch.uint8, torch.float16, torch.float32, torch.float64]),
)
def test_a_view_lies_inside_or_is_refused(
    offset: int, shape: list[int], dtype: torch.dtype
) -> None:
    """At a multiple of its item size."""
    size = torch.Size(shape).numel() * dtype.itemsize
    with HostArena(64, open_card("cpu"), memory=HOST) as arena:
        if 0 <= offset <= 64 - size and offset % dtype.itemsize == 0:
            view = arena.view(offset, shape, dtype)
            assert view.shape == torch.Size(shape)
            assert view.dtype == dtype
            assert view.storage_offset() * dtype.itemsize == offset
        else:
            with pytest.raises(ValueError, match="of an arena of 64 bytes"):
                arena.view(offset, shape, dtype)


def test_more_than_the_host_has_is_refused_before_it_is_taken(card: Card) -> None:
    """With the figures; of the machine, or of the group that we are in."""
    driver = Driver()
    with pytest.raises(MemoryShortage) as caught:
        HostArena(12 * GIB, card, memory=HOST, pins=driver.pins())
    assert str(caught.value) == (
        "Not enough host memory to keep 12.0 GiB of activations.\n"
        "12.0 GiB of 16.0 GiB is available, and 1.0 GiB of that is left for others.\n"
        "Try: close other programs, or a smaller size."
    )
    group = HostMemory(16 * GIB, 12 * GIB, Group(8 * MIB, 4 * MIB, 0), None)
    assert host_room(group) < 4 * MIB
    with pytest.raises(MemoryShortage, match=r"4\.0 MiB of 8\.0 MiB is available"):
        HostArena(4 * MIB, card, memory=group)
    HostArena(3 * MIB, card, memory=group).close()
    assert driver.held == {}


def test_what_the_system_refuses_is_a_shortage(card: Card) -> None:
    """Even if there seemed to be room."""
    large = HostMemory(2**63, 2**63, None, None)
    with pytest.raises(MemoryShortage, match=r"for activations: .* were refused"):
        HostArena(2**62, card, memory=large)


@pytest.mark.parametrize(
    "closes", [HostArena.close, lambda arena: arena.__exit__(None, None, None)]
)
def test_it_is_held_in_place_until_it_is_closed(
    card: Card, closes: Callable[[HostArena], None]
) -> None:
    """From the first to the last byte; closing again changes nothing."""
    driver = Driver()
    pins = driver.pins()
    arena = HostArena(3 * MIB + 1, card, pins=pins)
    assert arena.pinned
    assert driver.held == {arena.buffer.data_ptr(): 3 * MIB + 1}
    assert (pins.asked, arena.bytes) == (3 * MIB + 1, 3 * MIB + 1)
    for _ in range(2):
        closes(arena)
        assert not arena.pinned
        assert (driver.held, pins.asked, arena.bytes) == ({}, 0, 0)
    with pytest.raises(ValueError, match="of an arena of 0 bytes"):
        arena.view(0, (1,), torch.uint8)


@pytest.mark.parametrize("why", ["asked", "budget", "driver", "rounding", "nobody", "empty"])
def test_memory_that_is_not_held_serves_all_the_same(card: Card, why: str) -> None:
    """By our wish, for want of budget, by the driver's word; copies are the same."""
    driver = Driver(limit=3 * MIB if why == "driver" else 5 * MIB, rounds=why == "rounding")
    pins = Pins.none() if why == "nobody" else driver.pins(MIB if why == "budget" else GIB)
    size = 0 if why == "empty" else 4 * MIB + 4096
    with HostArena(size, card, pin=False if why == "asked" else None, pins=pins) as arena:
        assert not arena.pinned
        assert driver.held == {}
        if why != "empty":
            lane, compute = open_lane(card), compute_of(card)
            here, there = arena.view(4096, (4, 8), torch.float32), torch.ones(4, 8)
            there = there.to(card.device)
            lane.wait(compute.mark())
            lane.copy_back(here, there)
            lane.drain()
            assert here.eq(1).all()
    assert pins.refused == (why in ("budget", "driver", "rounding", "nobody"))


def test_without_pins_a_card_without_a_driver_holds_nothing(card: Card) -> None:
    """Even if it is asked to."""
    for pin in (None, True, False):
        with HostArena(MIB, card, pin=pin) as arena:
            assert not arena.pinned


def test_every_page_is_taken_at_once_and_given_back() -> None:
    """The process holds that much more, and afterwards no more than before."""
    process, size = psutil.Process(), 192 * MIB
    gc.collect()
    others = set(threading.enumerate())
    before = process.memory_info().rss
    with HostArena(size, open_card("cpu")):
        assert process.memory_info().rss - before > 0.95 * size
        assert set(threading.enumerate()) <= others
    assert process.memory_info().rss - before < 0.25 * size


@pytest.mark.skipif(not SMAPS.exists(), reason="only Linux tells how memory is mapped")
def test_it_is_asked_for_in_large_pages_and_not_for_forks() -> None:
    """Private: what is shared with forked processes gets no large pages as systems are set up."""
    with HostArena(8 * MIB, open_card("cpu")) as arena:
        kind, flags = mapped_at(arena.buffer.data_ptr())
    assert kind == "rw-p"
    assert "dc" in flags  # not copied on a fork
    if Path("/sys/kernel/mm/transparent_hugepage").exists():
        assert "hg" in flags


@given(st.integers(0, 2**40), st.integers(0, 2 * MIB - 1), st.integers(1, 300))
def test_threads_share_no_large_page(size: int, start: int, threads: int) -> None:
    """Every byte is some thread's, and no two threads have bytes of one large page."""
    parts = module._parts(size, start, threads)
    assert (parts[0][0], parts[-1][1]) == (0, size)
    assert [end for _, end in parts[:-1]] == [first for first, _ in parts[1:]]
    assert all(first < end for first, end in parts) or size == 0
    assert all((end - start) % (2 * MIB) == 0 for _, end in parts[:-1])
    assert len(parts) <= min(threads, 16)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("can't start new thread")])
@pytest.mark.parametrize("where", ["touch", "hold"])
def test_an_interrupt_while_it_is_made_leaves_nothing_held(
    card: Card, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> None:
    """Neither by the driver nor by us."""
    driver = Driver()
    pins = driver.pins()

    def touch(buffer: torch.Tensor) -> None:
        assert buffer.nbytes == MIB
        if where == "touch":
            raise error

    def register(address: int, size: int) -> bool:
        driver.held[address] = size
        raise error

    monkeypatch.setattr(module, "_touch", touch)
    monkeypatch.setattr(pins, "_register", register)
    with pytest.raises(type(error)):
        HostArena(MIB, card, pins=pins)
    assert (driver.held, pins.asked) == ({}, 0)


@pytest.mark.parametrize("closes", [True, False])
def test_pages_that_come_meanwhile_are_waited_for(
    card: Card, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """By who looks at them, and by who lets them go."""
    driver, begun, go_on = Driver(), threading.Event(), threading.Event()

    def touch(buffer: torch.Tensor) -> None:
        begun.set()
        assert go_on.wait(10)
        buffer.zero_()

    monkeypatch.setattr(module, "_touch", touch)
    arena = HostArena(MIB, card, pins=driver.pins(), ahead=True)
    assert begun.wait(10)
    assert driver.held == {}
    threading.Timer(0.05, go_on.set).start()
    if not closes:
        assert arena.view(0, (4,), torch.float32).eq(0).all()
        assert arena.pinned
        assert list(driver.held.values()) == [MIB]
    arena.close()
    assert (driver.held, arena.bytes) == ({}, 0)


def test_what_kept_pages_away_is_raised_where_they_are_needed(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the thread that took them."""

    def touch(buffer: torch.Tensor) -> None:
        raise MemoryError(f"no {buffer.nbytes} bytes")

    monkeypatch.setattr(module, "_touch", touch)
    with HostArena(MIB, card, ahead=True) as arena, pytest.raises(MemoryError, match="no 1048576"):
        arena.view(0, (1,), torch.uint8)
    assert arena.bytes == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_inside_lets_it_go(card: Card, error: type[BaseException]) -> None:
    """As the end of the job does."""
    driver = Driver()
    with pytest.raises(error), HostArena(MIB, card, pins=driver.pins()) as arena:
        raise error
    assert (driver.held, arena.bytes, arena.pinned) == ({}, 0, False)
