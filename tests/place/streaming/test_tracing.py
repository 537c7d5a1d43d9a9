"""Points that are set while a ring works, and what they tell afterwards."""

from __future__ import annotations

import pytest
import torch

from tests.place.streaming.clock import Moment, Timed, TimedLane
from tightfit.card import open_card
from tightfit.card.lanes import Stamp
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.streaming.arena import Arena, Layout
from tightfit.place.streaming.ring import Ring
from tightfit.place.streaming.tracing import KEPT, Tracer

SIZE, RATE, WORK = 100, 1000.0, 0.04


class Counting(Timed):
    """Counts the points that are made."""

    made = 0

    def stamp(self, *, again: Stamp | None = None) -> Stamp:
        self.made += again is None
        return super().stamp(again=again)


class Traced:
    """A ring with a tracer, and a compute queue that work takes time on."""

    def __init__(self, *, count: int = 4, slots: int = 2) -> None:
        self.compute, self.lane = Counting(), TimedLane(RATE)
        self.tracer = Tracer()
        lane, compute = self.tracer.over(self.lane, self.compute)
        blocks = [torch.full((SIZE,), at, dtype=torch.uint8) for at in range(count)]
        self.arenas = [Arena(Layout.of([block]), [block]) for block in blocks]
        self.ring = Ring(open_card("cpu"), lane, compute, self.arenas, slots=slots)
        self.ring.ahead()

    def step(self, *, seen: bool = True) -> None:
        """Each block once."""
        self.tracer.begin()
        for at, arena in enumerate(self.arenas):
            user = object()
            self.tracer.reach(str(at), user)
            self.ring.take(arena, user)
            self.tracer.start(user)
            self.compute.now += WORK
            self.tracer.leave(user)
            self.ring.leave(arena, user)
        self.tracer.end(seen=seen)


def test_copies_waits_and_compute_of_each_use_are_told() -> None:
    """Copies take 0.1 s and work 0.04: compute waits 0.06 s for each block in steady state."""
    traced = Traced()
    for _ in range(3):
        traced.step()
    first, _, last = traced.tracer.steps
    assert [block.name for block in last.blocks] == ["0", "1", "2", "3"]
    assert [block.moved_bytes for block in last.blocks] == [SIZE] * 4
    for block in last.blocks:
        assert block.copy_seconds == pytest.approx(SIZE / RATE)
        assert block.stall_seconds == pytest.approx(SIZE / RATE - WORK)
        assert block.compute_seconds == pytest.approx(WORK)
    assert last.seconds == last.copy_seconds == pytest.approx(4 * SIZE / RATE)
    assert last.compute_seconds == pytest.approx(4 * WORK)
    assert last.link_rate == pytest.approx(RATE)
    assert last.times_limit == pytest.approx(1)
    assert last.blocks[0].copy_start is not None
    assert last.blocks[0].copy_start < 0  # the copy began in the step before
    assert first.blocks[0].copy_start == 0


def test_a_copy_back_belongs_to_no_use() -> None:
    """It goes through, and what waits for it has not waited for weights."""
    traced = Traced(count=2, slots=2)
    lane, _ = traced.tracer.over(traced.lane, traced.compute)
    traced.step()
    here, there = torch.zeros(SIZE), torch.ones(SIZE)
    lane.copy_back(here, there)
    lane.mark()
    traced.step()
    assert here.eq(1).all()
    assert [block.moved_bytes for block in traced.tracer.steps[-1].blocks] == [0, 0]


def test_what_is_still_there_was_not_copied() -> None:
    """With a slot for each, the second step moves nothing."""
    traced = Traced(count=2, slots=2)
    traced.step()
    traced.step()
    first, second = traced.tracer.steps
    assert (first.moved_bytes, second.moved_bytes) == (2 * SIZE, 0)
    assert (second.stall_seconds, second.copy_seconds) == (0, 0)
    assert second.seconds == pytest.approx(2 * WORK)


def test_the_latest_steps_are_kept_and_their_points_used_again() -> None:
    """However many there were, asked for or not."""
    traced = Traced()
    for _ in range(2 * KEPT):
        traced.step()
    made = traced.compute.made
    for _ in range(3 * KEPT):
        traced.step()
    assert traced.compute.made <= made
    kept = traced.tracer.steps
    assert len(kept) == KEPT
    assert traced.tracer.steps == kept
    traced.step()
    assert traced.tracer.steps[:-1] == kept[1:]


def test_a_step_that_was_not_seen_to_end_is_forgotten() -> None:
    """Nobody knows what it would have come to."""
    traced = Traced()
    traced.step()
    traced.step(seen=False)
    assert len(traced.tracer.steps) == 1
    traced.tracer.begin()
    traced.tracer.reach("0", "me")
    traced.step()
    assert len(traced.tracer.steps) == 2
    assert len(traced.tracer.steps[-1].blocks) == 4


@pytest.mark.parametrize("name", ["cpu", "virtual:1MiB"])
def test_every_card_can_be_traced(name: str) -> None:
    """The bytes are told, and times where there is a clock."""
    card = open_card(name)
    tracer = Tracer()
    lane, compute = tracer.over(open_lane(card), compute_of(card))
    block = torch.ones(SIZE)
    arena = Arena(Layout.of([block]), [block])
    ring = Ring(card, lane, compute, [arena], slots=1)
    tracer.begin()
    tracer.reach("one", "me")
    assert torch.equal(ring.take(arena, "me")[0].cpu(), block)
    tracer.start("me")
    tracer.leave("me")
    ring.leave(arena, "me")
    tracer.end(seen=True)
    (step,) = tracer.steps
    assert step.moved_bytes == 4 * SIZE
    assert (step.seconds is None) == (name != "cpu")
    assert (step.blocks[0].copy_seconds is None) == (name != "cpu")


def test_a_moment_is_set_anew() -> None:
    """The helper itself: one object for one point after another."""
    queue = Timed()
    one = queue.stamp()
    queue.now = 1.0
    assert queue.stamp(again=one) is one
    assert isinstance(one, Moment)
    assert one.at == 1.0
