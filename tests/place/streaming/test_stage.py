"""A lane with a worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.cases.common import assert_back, virtual
from tightfit.card.lanes import Lane, Mark
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import JobFailed
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.streaming.bounce import COUNT, Bounce, buffer_size
from tightfit.place.streaming.master import Source
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.stage import Stage, StagedQueue, close_all
from tightfit.units import MIB


class Slow(Source):
    """Bytes whose reading waits for a word, and may fail."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()
        self.error: BaseException | None = None

    def fill(self, target: torch.Tensor, start: int) -> None:
        self.begun.set()
        assert self.go.wait(10)
        if self.error is not None:
            raise self.error
        target.copy_(self.values[start : start + target.nbytes])


def some(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 255, (size,), generator=torch.Generator().manual_seed(seed)).to(
        torch.uint8
    )


def all_pins() -> Pins:
    return Pins(MIB, register=lambda *_: True, unregister=lambda _: None)


def workers() -> set[threading.Thread]:
    """Threads of ours that are there; other tests may have left some."""
    return {thread for thread in threading.enumerate() if "tightfit" in thread.name}


@contextmanager
def staged(
    *, pins: Pins | None = None, size: int = 4096, lane: Lane | None = None
) -> Iterator[tuple[Stage, StagedQueue, VirtualCard]]:
    card, others = virtual("1MiB"), workers()
    card.faults.lanes = "strict"
    lane = lane or open_lane(card)
    bounce = Bounce(pins or all_pins(), lane)
    bounce.open(size)
    stage = Stage(lane, bounce)
    try:
        yield stage, StagedQueue(compute_of(card)), card
    finally:
        stage.close()
        card.sync()
        bounce.close()
        assert workers() <= others


def slot(card: VirtualCard, size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8, device=card.device)


@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=5), st.booleans(), st.booleans())
def test_what_is_poured_arrives(sizes: list[int], held: bool, mixed: bool) -> None:
    """Through buffers that are smaller, over and over into the same place; also among others."""
    with staged(pins=all_pins() if held else Pins.none()) as (stage, compute, card):
        target = slot(card, max(sizes))
        free, ready = compute.mark(), None
        for at, size in enumerate(sizes):
            values = some(size, at)
            stage.wait(free)
            if mixed and at % 2:
                stage.copy(target[:size], values)
            else:
                stage.pour(target[:size], Slow(values))
            ready = stage.mark(again=ready)
            compute.wait(ready)
            assert torch.equal(target[:size].cpu(), values)
            free = compute.mark(again=free)
        assert not card.hazards


def test_without_anything_to_pour_there_is_no_thread() -> None:
    """All goes straight to the lane beneath."""
    with staged() as (stage, compute, card):
        before, values = threading.active_count(), some(100)
        target = slot(card, 100)
        stage.wait(compute.mark())
        stage.copy(target, values)
        compute.wait(stage.mark())
        assert torch.equal(target.cpu(), values)
        assert threading.active_count() == before


@pytest.mark.parametrize("poured", [False, True])
def test_copies_back_keep_their_turn(*, poured: bool) -> None:
    """Straight to the lane beneath, or after what the worker has yet to pour."""
    with staged() as (stage, compute, card):
        source, here = Slow(some(9000)), torch.zeros(9000, dtype=torch.uint8)
        target = slot(card, 9000)
        stage.wait(compute.mark())
        if poured:
            source.go.clear()
            stage.pour(target, source)
        stage.copy_back(here, target)
        done = stage.mark()
        source.go.set()
        done.drain()
        assert torch.equal(here, source.values if poured else torch.zeros_like(here))
        assert not card.hazards


def test_the_caller_goes_on_while_the_worker_reads() -> None:
    """Pours, copies, waits and marks are queued; only the mark makes it wait, and drain."""
    with staged() as (stage, compute, card):
        source, values = Slow(some(9000)), some(50, 1)
        target, other = slot(card, 9000), slot(card, 50)
        source.go.clear()
        stage.wait(compute.mark())
        stage.pour(target, source)
        first = stage.mark()
        stage.wait(compute.mark())
        stage.copy(other, values)
        second = stage.mark()
        assert source.begun.wait(10)
        threading.Timer(0.05, source.go.set).start()
        compute.wait(second)
        assert source.go.is_set()
        assert torch.equal(other.cpu(), values)
        compute.wait(first)
        assert torch.equal(target.cpu(), source.values)
        source.go.clear()
        stage.wait(compute.mark())
        stage.pour(target, source)
        stage.wait(compute.mark())
        threading.Timer(0.05, source.go.set).start()
        stage.drain()
        assert source.go.is_set()


def test_a_buffer_is_filled_anew_only_when_it_was_copied_from() -> None:
    """One copy after the other waits for the mark after the last copy out of the same buffer."""

    class Point(Mark):
        def __init__(self) -> None:
            self.passed = False

        def drain(self) -> None:
            self.passed = True

    class Journal(Lane):
        def __init__(self) -> None:
            self.under_way: list[tuple[int, Point]] = []
            self.sources: list[int] = []

        def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
            assert all(point.passed for at, point in self.under_way if at == source.data_ptr())
            self.sources.append(source.data_ptr())
            del target

        def copy_back(self, target: torch.Tensor, source: torch.Tensor) -> None:
            raise AssertionError("nothing is poured back", target, source)

        def mark(self, *, again: Mark | None = None) -> Mark:
            del again
            point = Point()
            if self.sources:
                self.under_way.append((self.sources[-1], point))
            return point

        def wait(self, mark: Mark) -> None:
            """Nothing waits."""

        def drain(self) -> None:
            """Nothing is under way."""

    lane = Journal()
    with staged(lane=lane) as (stage, _, card):
        stage.pour(slot(card, 40_000), Slow(some(40_000)))
        stage.drain()
        assert len(lane.sources) == 10
        assert len(set(lane.sources)) == COUNT


@pytest.mark.parametrize("error", [OSError("broken"), MemoryError(), KeyboardInterrupt()])
def test_a_failure_is_told_to_who_waits_for_the_copy_and_the_next_finds_it_made(
    error: BaseException,
) -> None:
    """Not to those who wait for others; again as long as it fails."""
    with staged() as (stage, compute, card):
        source, values = Slow(some(9000)), some(50, 1)
        source.error = error
        target, other = slot(card, 9000), slot(card, 50)
        stage.wait(compute.mark())
        stage.pour(target, source)
        bad = stage.mark()
        stage.copy(other, values)
        compute.wait(stage.mark())
        assert torch.equal(other.cpu(), values)
        for _ in range(2):
            with pytest.raises(type(error)):
                compute.wait(bad)
        source.error = None
        compute.wait(bad)
        assert torch.equal(target.cpu(), source.values)


def test_a_failure_that_nobody_waited_for_goes_with_its_place() -> None:
    """What is copied there later is not the worse for it."""
    with staged() as (stage, compute, card):
        broken, good, target = Slow(some(9000)), Slow(some(9000, 1)), slot(card, 9000)
        broken.error = OSError("broken")
        stage.wait(compute.mark())
        stage.pour(target, broken)
        mark = stage.mark()
        stage.pour(target, good)
        mark = stage.mark(again=mark)
        compute.wait(mark)
        assert torch.equal(target.cpu(), good.values)


def test_closing_drops_what_was_not_begun_and_says_so_to_who_waits() -> None:
    """From another thread too; a mark that was passed before is no excuse."""
    with staged() as (stage, compute, card):
        source, target = Slow(some(9000)), slot(card, 9000)
        stage.wait(compute.mark())
        stage.pour(target, source)
        mark = stage.mark()
        compute.wait(mark)
        source.go.clear()
        source.begun.clear()
        stage.wait(compute.mark())
        stage.pour(target, source)
        mark = stage.mark(again=mark)
        told: list[str] = []

        def waits() -> None:
            with pytest.raises(JobFailed, match="had ended"):
                mark.drain()
            told.append("once")

        waiting = threading.Thread(target=waits)
        waiting.start()
        assert source.begun.wait(10)
        closing = threading.Thread(target=stage.close)
        closing.start()
        waiting.join(10)
        assert told == ["once"]
        assert closing.is_alive()
        source.go.set()
        closing.join(10)
        assert not closing.is_alive()
        with pytest.raises(JobFailed):
            stage.pour(target, source)


def test_an_error_keeps_nothing_of_the_card() -> None:
    """Nor does a mark that nobody asks any more."""
    with staged() as (stage, compute, card):
        source = Slow(some(9000))
        source.error = OSError("broken")
        stage.wait(compute.mark())
        stage.pour(slot(card, 9000), source)
        mark = stage.mark()
        with pytest.raises(OSError, match="broken") as caught:
            compute.wait(mark)
        stage.drain()
        del mark
        stage.close()
        assert_back(card)
        assert caught.value is source.error


def test_the_buffers_take_a_part_of_the_budget() -> None:
    """A quarter at most, no more than masters need, whole pages; without a budget as they like."""
    assert buffer_size(16 * MIB, 6 * MIB) == MIB
    assert buffer_size(10**12, 10**12) == 16 * MIB
    assert buffer_size(10**12, 5000) == 8192
    assert buffer_size(0, 5000) == 8192
    pins = Pins(100_000, register=lambda *_: True, unregister=lambda _: None)
    bounce = Bounce(pins, open_lane(virtual(MIB)))
    bounce.open(buffer_size(pins.budget, MIB))
    assert bounce.held
    assert pins.bytes == bounce.bytes <= pins.budget // 4
    bounce.close()
    assert pins.bytes == 0


@pytest.mark.parametrize("granted", range(COUNT + 1))
def test_two_buffers_are_held_at_least_or_none(granted: int) -> None:
    """The driver may refuse any of them; what is poured arrives."""
    held: list[int] = []

    def register(address: int, size: int) -> bool:
        if len(held) == granted:
            return False
        held.append(address)
        return True

    pins = Pins(MIB, register=register, unregister=held.remove)
    with staged(pins=pins) as (stage, compute, card):
        assert len(held) == (granted if granted > 1 else 0)
        target, source = slot(card, 40_000), Slow(some(40_000))
        stage.wait(compute.mark())
        stage.pour(target, source)
        compute.wait(stage.mark())
        assert torch.equal(target.cpu(), source.values)
    assert not held
    assert pins.bytes == 0


def test_no_worker_is_left_when_the_process_ends() -> None:
    """Nobody has to give a module back first; a copy that is under way is waited for."""
    others = workers()
    with staged() as (stage, _, card):
        source, target = Slow(some(64)), slot(card, 64)
        source.go.clear()
        stage.pour(target, source)
        assert source.begun.wait(10)
        threading.Timer(0.05, source.go.set).start()
        close_all()
        assert workers() <= others
        with pytest.raises(JobFailed, match="had ended"):
            stage.pour(target, source)
        stage.drain()
