"""The slots that weights pass through."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.cases.common import virtual
from tightfit.card.lanes import Lane, Mark, Queue
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import BooksError, UsageError
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.streaming.arena import Arena, Layout
from tightfit.place.streaming.berths import slot_of
from tightfit.place.streaming.ring import Ring


class Point(Mark):
    """When it was set, on the one clock of all queues."""

    def __init__(self, queue: str, at: int) -> None:
        self.queue, self.at = queue, at

    def drain(self) -> None:
        """Nothing to wait for."""


class Journal(Lane):
    """A queue that writes down what it is given."""

    def __init__(self, name: str, lines: list[tuple[str, str, object]]) -> None:
        self.name, self.lines = name, lines

    def mark(self, *, again: Mark | None = None) -> Mark:
        self.lines.append((self.name, "mark", again))
        return Point(self.name, len(self.lines))

    def wait(self, mark: Mark) -> None:
        assert isinstance(mark, Point)
        self.lines.append((self.name, "wait", (mark.queue, mark.at)))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.lines.append((self.name, "copy", source.data_ptr()))
        target.copy_(source)

    def copy_back(self, target: torch.Tensor, source: torch.Tensor) -> None:
        raise AssertionError("weights are copied to the card only", target, source)

    def drain(self) -> None:
        self.lines.append((self.name, "drain", None))


def arenas(count: int, *, size: int = 64) -> list[Arena]:
    tensors = [
        [torch.full((size,), float(at)), torch.full((3,), -float(at))] for at in range(count)
    ]
    return [Arena(Layout.of(each), each) for each in tensors]


def ring_of(
    masters: list[Arena], slots: int, *, lane: Lane | None = None, compute: Queue | None = None
) -> tuple[Ring, VirtualCard]:
    card = virtual("1MiB")
    lane, compute = lane or open_lane(card), compute or compute_of(card)
    return Ring(card, lane, compute, masters, slots=slots), card


@contextmanager
def taken(ring: Ring, arena: Arena) -> Iterator[tuple[torch.Tensor, ...]]:
    user = object()
    views = ring.take(arena, user)
    try:
        yield views
    finally:
        assert ring.leave(arena, user)


@given(st.lists(st.integers(0, 4), max_size=20), st.integers(1, 4))
def test_whatever_is_taken_in_whatever_order_is_there(order: list[int], slots: int) -> None:
    """The right values each time, and no allocation after the slots'."""
    masters = arenas(5)
    ring, card = ring_of(masters, slots)
    count = card.allocations
    for at in order:
        with taken(ring, masters[at]) as views:
            assert views[0].cpu().eq(at).all()
            assert views[1].cpu().eq(-at).all()
    assert card.allocations == count
    assert ring.copies.grown == 0


@given(st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=8), st.integers(1, 3))
def test_what_is_in_use_keeps_its_slot(groups: list[list[int]], slots: int) -> None:
    """Several at once, the same twice: a slot more is made rather than one in use filled anew."""
    masters = arenas(4)
    ring, _ = ring_of(masters, slots)
    for inside in groups:
        users = [(at, object()) for at in inside]
        views = [ring.take(masters[at], user) for at, user in users]
        assert all(v[0].cpu().eq(at).all() for v, (at, _) in zip(views, users, strict=True))
        for at, user in users:
            ring.leave(masters[at], user)
    most = max((len(set(inside)) for inside in groups), default=0)
    assert ring.copies.grown == max(0, most - slots)


@pytest.mark.parametrize(("slots", "ahead"), [(1, 1), (2, 2), (3, 3), (9, 4)])
def test_as_many_are_copied_ahead_as_there_are_free_slots(slots: int, ahead: int) -> None:
    """In order, from the start and round its end."""
    masters = arenas(4)
    ring, _ = ring_of(masters, slots)
    ring.ahead()
    assert ring.copies.count == ahead
    for _ in range(3):
        for arena in masters:
            with taken(ring, arena):
                pass
    assert ring.copies.late == 0
    assert ring.copies.count == (4 if slots == 9 else 12 + ahead)


def test_copies_wait_for_compute_and_compute_for_copies_and_the_host_for_none() -> None:
    """Before each copy a wait for the last use of the slot; before each use, for its copy."""
    lines: list[tuple[str, str, object]] = []
    masters = arenas(3)
    ring, card = ring_of(masters, 2, lane=Journal("lane", lines), compute=Journal("compute", lines))
    syncs = card.syncs
    for _ in range(4):
        for arena in masters:
            start = len(lines)
            user = object()
            ring.take(arena, user)
            waits = [
                what for who, kind, what in lines[start:] if (who, kind) == ("compute", "wait")
            ]
            assert len(waits) == 1
            source = arena.buffer.data_ptr()
            copied = max(at for at, line in enumerate(lines) if line == ("lane", "copy", source))
            queue, at = waits[0]  # type: ignore[misc]
            assert queue == "lane"
            assert at == copied + 2  # the mark right after the copy
            ring.leave(arena, user)
    for at, (who, kind, _) in enumerate(lines):
        if kind == "copy":
            assert who == "lane"
            before = lines[at - 1]
            assert before[:2] == ("lane", "wait")
            assert before[2][0] == "compute"  # type: ignore[index]
    assert card.syncs == syncs
    assert not any(kind == "drain" for _, kind, _ in lines)
    ring.close()
    assert lines[-1] == ("lane", "drain", None)


def test_a_copy_that_was_interrupted_is_made_again() -> None:
    """The slot never claims what did not arrive."""

    class Breaks(Journal):
        broken = False

        def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
            if self.broken:
                target.fill_(255)
                raise KeyboardInterrupt
            super().copy(target, source)

    lane = Breaks("lane", [])
    masters = arenas(3)
    ring, _ = ring_of(masters, 1, lane=lane, compute=Journal("compute", []))
    with taken(ring, masters[0]):
        pass
    lane.broken = True
    with pytest.raises(KeyboardInterrupt):
        ring.take(masters[2], "me")
    lane.broken = False
    assert ring.leave(masters[2], "me")
    for at in (1, 2, 0):
        with taken(ring, masters[at]) as views:
            assert views[0].cpu().eq(at).all()
    assert ring.copies.grown == 0


def test_a_ring_that_compares_finds_what_is_not_the_masters() -> None:
    """Bytes that are another's."""

    class Mistakes(Journal):
        def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
            target.copy_(torch.zeros_like(source))

    tensors = [torch.full((64,), at, dtype=torch.uint8) for at in range(2)]
    masters = [Arena(Layout.of([each]), [each]) for each in tensors]
    card = virtual("1MiB")
    ring = Ring(card, Mistakes("l", []), Journal("c", []), masters, slots=2, compares=True)
    with taken(ring, masters[0]):
        pass
    with pytest.raises(BooksError, match="64 of 64 bytes of streamed weights are not"):
        ring.take(masters[1], "me")


def test_what_lingers_is_not_copied_again() -> None:
    """It gives way when another is taken."""
    masters = arenas(3)
    ring, _ = ring_of(masters, 1)
    for _ in range(3):
        ring.take(masters[0], "me")
        assert ring.leave(masters[0], "me", lingers=True)
    assert ring.copies.count == 1
    with taken(ring, masters[1]) as views:
        assert views[0].cpu().eq(1).all()


def test_leaving_twice_or_without_having_taken_does_nothing() -> None:
    """Whoever cleans up may do so again."""
    masters = arenas(2)
    ring, _ = ring_of(masters, 1)
    ring.take(masters[0], "me")
    ring.take(masters[0], "other")
    assert not ring.leave(masters[0], "me")
    assert not ring.leave(masters[0], "me")
    assert ring.leave(masters[1], "me")
    assert ring.leave(masters[0], "other")


def test_a_ring_takes_what_it_says_and_gives_it_back() -> None:
    """Slots of the largest, no more of them than there are masters."""
    masters = [*arenas(2), *arenas(1, size=500)]
    ring, card = ring_of(masters, 9)
    assert ring.slot_bytes == slot_of([arena.layout.bytes for arena in masters])
    assert ring.bytes == 3 * ring.slot_bytes
    held = card.read().allocated
    assert held is not None
    assert 0 <= held - ring.bytes < 3 * 512
    ring.close()
    assert card.read().allocated == 0


def test_a_ring_without_slots_is_refused() -> None:
    """Nothing could pass."""
    with pytest.raises(UsageError, match="at least 1"):
        ring_of(arenas(1), 0)
