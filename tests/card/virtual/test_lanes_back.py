"""Copies back from a virtual card: the right waits change nothing, and a missing one shows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from tightfit.card import open_card
from tightfit.card.lanes import Lane, Queue
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import JobFailed
from tightfit.place.lanes import compute_of, open_lane

ROWS, WIDTH, LAYERS = 6, 8, 3


def virtual(*, lanes: Any = True, seed: int | None = None) -> VirtualCard:
    card = open_card("virtual:1MiB")
    assert isinstance(card, VirtualCard)
    card.faults.lanes = lanes
    card.faults.lane_seed = seed
    return card


@dataclass
class Setting:
    """A card, one lane, compute, and eight numbers on either side."""

    card: VirtualCard = field(default_factory=virtual)
    lane: Lane = field(init=False)
    compute: Queue = field(init=False)

    def __post_init__(self) -> None:
        self.lane, self.compute = open_lane(self.card), compute_of(self.card)
        self.there = torch.ones(8, device=self.card.device)
        self.here = torch.zeros(8)

    def copy_back(self) -> None:
        self.lane.wait(self.compute.mark())
        self.lane.copy_back(self.here, self.there)

    @property
    def hazards(self) -> tuple[str, ...]:
        return self.card.hazards


@pytest.fixture(name="at")
def setting() -> Iterator[Setting]:
    """With the switch on; the books add up to nothing afterwards."""
    made = Setting()
    yield made
    card = made.card
    del made.there
    gc.collect()
    card.check()
    assert card.read().allocated == 0


@dataclass
class Strips:
    """Rows on the host, each of them through the card once a layer, by two lanes and two slots."""

    card: VirtualCard
    without: str = ""

    def run(self, rows: torch.Tensor) -> torch.Tensor:
        """In place on the host; [ROWS, WIDTH]."""
        kept = rows.clone()
        compute = compute_of(self.card)
        up, down = open_lane(self.card), open_lane(self.card)
        into, out = (torch.empty(2, 2, WIDTH, device=self.card.device) for _ in range(2))
        start = compute.mark()
        up.wait(start)
        down.wait(start)
        taken, sent, written = [start, start], [start, start], start
        for number in range(LAYERS * (ROWS // 2)):
            strip, slot = number % (ROWS // 2), number % 2
            here = kept[2 * strip : 2 * strip + 2]
            if strip == 0 and self.without != "up written":
                up.wait(written)
            if self.without != "up free":
                up.wait(taken[slot])
            up.copy(into[slot], here)
            if self.without != "up ready":
                compute.wait(up.mark())
            if self.without != "down free":
                compute.wait(sent[slot])
            torch.tanh(into[slot] * 2, out=out[slot])
            taken[slot] = compute.mark()
            if self.without != "down ready":
                down.wait(taken[slot])
            down.copy_back(here, out[slot])
            sent[slot] = written = down.mark()
        written.drain()
        return kept


def rows() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def wanted() -> torch.Tensor:
    values = rows()
    for _ in range(LAYERS):
        values = torch.tanh(values * 2)
    return values


@pytest.mark.parametrize("seed", [None, *range(30)])
def test_the_right_waits_give_the_same_bits_whatever_the_schedule(seed: int | None) -> None:
    """Up, through, and back to where it came from; the host waits once, at the end."""
    card = virtual(lanes="strict", seed=seed)
    assert torch.equal(Strips(card).run(rows()), wanted())
    assert card.hazards == ()
    assert card.syncs == 1
    assert card.read().allocated == 0


@pytest.mark.parametrize("seed", [None, *range(5)])
@pytest.mark.parametrize(
    "missing", ["up free", "up ready", "up written", "down ready", "down free"]
)
def test_a_missing_wait_shows_as_nan_on_the_host(missing: str, seed: int | None) -> None:
    """Whichever of them it is, and whatever happens to come first."""
    card = virtual(seed=seed)
    result = Strips(card, without=missing).run(rows())
    assert result.isnan().any()
    assert card.hazards


def test_what_is_copied_back_is_poison_until_the_host_waits(at: Setting) -> None:
    """NaN in what floats, all bits elsewhere; that compute waited does not show it to the host."""
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        there, here = torch.ones(8, device=at.card.device).to(dtype), torch.zeros(8).to(dtype)
        at.lane.wait(at.compute.mark())
        at.lane.copy_back(here, there)
        assert here.float().isnan().all()
        at.compute.wait(at.lane.mark())
        assert here.float().isnan().all()
        at.lane.mark().drain()
        assert here.float().eq(1).all()
    for value, dtype in ((255, torch.uint8), (-1, torch.int64), (1, torch.bool)):
        there = torch.zeros(8, dtype=dtype, device=at.card.device)
        here = torch.zeros(8, dtype=dtype)
        at.lane.wait(at.compute.mark())
        at.lane.copy_back(here, there)
        assert here.eq(value).all()
        at.lane.drain()
        assert here.eq(0).all()
    assert at.hazards == ()


def test_the_switch_off_copies_at_once() -> None:
    """Values are there, and nobody looks."""
    at = Setting(virtual(lanes=False))
    at.lane.copy_back(at.here, at.there)
    assert at.here.eq(1).all()
    assert at.hazards == ()


def test_a_copy_back_that_does_not_wait_for_compute_is_a_hazard(at: Setting) -> None:
    """It may take what was there before; the host gets poison."""
    at.lane.wait(at.compute.mark())
    at.there.mul_(2)
    at.lane.copy_back(at.here, at.there)
    assert ["may still be writing" in each for each in at.hazards] == [True]
    at.lane.drain()
    assert at.here.isnan().all()


def test_compute_that_reads_beside_a_copy_back_is_no_hazard(at: Setting) -> None:
    """Only who writes has to wait for it."""
    at.copy_back()
    total = at.there.sum()
    assert at.hazards == ()
    assert total == 8
    at.lane.drain()
    assert at.here.eq(1).all()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_compute_that_writes_under_a_copy_back_spoils_it(seed: int | None) -> None:
    """Also where it happened to be done already; after a wait it may."""
    at = Setting(virtual(seed=seed))
    at.copy_back()
    at.there.zero_()
    assert ["compute did not wait" in each for each in at.hazards] == [True]
    at.lane.drain()
    assert at.here.isnan().all()
    at.copy_back()
    at.compute.wait(at.lane.mark())
    at.there.add_(3)
    at.lane.drain()
    assert len(at.hazards) == 1
    assert at.here.eq(0).all()


def test_a_copy_to_the_card_over_what_is_copied_back_needs_an_order(at: Setting) -> None:
    """In one lane there is one; another lane has to wait."""
    source, other = torch.full((8,), 2.0), open_lane(at.card)
    at.copy_back()
    at.lane.copy(at.there, source)
    at.lane.drain()
    assert at.hazards == ()
    assert at.here.eq(1).all()
    at.copy_back()
    other.copy(at.there, source)
    assert ["may still be copying back" in each for each in at.hazards] == [True]
    at.lane.drain()
    other.drain()
    assert at.here.isnan().all()


def test_a_copy_back_of_what_another_lane_is_copying_needs_an_order(at: Setting) -> None:
    """With a wait it brings back what came."""
    source, other = torch.full((8,), 2.0), open_lane(at.card)
    at.lane.wait(at.compute.mark())
    other.wait(at.compute.mark())
    at.lane.copy(at.there, source)
    other.wait(at.lane.mark())
    other.copy_back(at.here, at.there)
    other.drain()
    assert at.hazards == ()
    assert at.here.eq(2).all()
    at.lane.copy(at.there, source)
    other.copy_back(at.here, at.there)
    assert ["still be copying to the card" in each for each in at.hazards] == [True]
    other.drain()
    assert at.here.isnan().all()


@pytest.mark.parametrize("waits", [True, False])
def test_memory_freed_under_a_copy_back_is_a_hazard(waits: bool) -> None:
    """Unless compute, which may take that memory next, waits for the copy."""
    at = Setting()
    at.copy_back()
    if waits:
        at.compute.wait(at.lane.mark())
    del at.there
    assert [("freed while" in each) for each in at.hazards] == ([] if waits else [True])
    at.lane.drain()
    assert bool(at.here.isnan().all()) is not waits
    assert at.card.read().allocated == 0


def test_the_host_may_not_write_to_or_free_a_target_under_way(at: Setting) -> None:
    """The bytes are poison then, and a sentence says which."""
    at.copy_back()
    at.here[2] = 5
    at.lane.drain()
    assert at.hazards == (
        "the target of a copy back of 32 B was written to before the copy was done",
    )
    assert at.here.isnan().all()
    at.copy_back()
    at.here = torch.zeros(8)
    at.lane.drain()
    assert at.hazards[1:] == (
        "the target of a copy back of 32 B was freed before the copy was done",
    )


def test_what_comes_back_may_go_on_from_there_by_a_lane_that_waited(at: Setting) -> None:
    """The host waits for nothing; a lane that did not wait copies poison."""
    up, other = open_lane(at.card), torch.zeros(8, device=at.card.device)
    at.copy_back()
    up.wait(at.compute.mark())
    up.wait(at.lane.mark())
    up.copy(other, at.here)
    at.compute.wait(up.mark())
    assert at.hazards == ()
    assert other.sum() == 8
    up.wait(at.compute.mark())
    at.copy_back()
    up.copy(other, at.here)
    assert ["from host memory that another" in each for each in at.hazards] == [True]
    at.compute.wait(up.mark())
    assert other.sum().isnan()
    at.lane.drain()
    assert at.here.eq(1).all()


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_copy_back_over_what_is_still_copied_from_needs_an_order(seed: int | None) -> None:
    """Rows that are worked on in place: the lane back waits for the lane there."""
    at = Setting(virtual(seed=seed))
    up, other = open_lane(at.card), torch.zeros(8, device=at.card.device)
    up.wait(at.compute.mark())
    up.copy(other, at.here)
    at.lane.wait(up.mark())
    at.copy_back()
    at.compute.wait(at.lane.mark())
    assert at.hazards == ()
    assert other.sum() == 0
    at.lane.drain()
    up.wait(at.compute.mark())
    up.copy(other, at.here)
    at.copy_back()
    assert ["may still be copying from" in each for each in at.hazards] == [True]
    at.card.sync()
    assert at.here.isnan().all()


def test_two_lanes_back_to_the_same_bytes_need_an_order(at: Setting) -> None:
    """With a wait the later one wins."""
    other, twos = open_lane(at.card), torch.full((8,), 2.0, device=at.card.device)
    at.copy_back()
    other.wait(at.compute.mark())
    other.wait(at.lane.mark())
    other.copy_back(at.here, twos)
    other.drain()
    assert at.hazards == ()
    assert at.here.eq(2).all()
    at.copy_back()
    other.copy_back(at.here[4:], twos[4:])
    assert ["back to host memory that another" in each for each in at.hazards] == [True]
    at.card.sync()
    assert at.here.isnan().all()


def test_strips_of_one_buffer_are_told_apart(at: Setting) -> None:
    """Neighbours on the host and on the card are nobody's concern."""
    up, kept = open_lane(at.card), torch.arange(16.0)
    start = at.compute.mark()
    up.wait(start)
    at.lane.wait(start)
    at.lane.copy_back(kept[:4], at.there[:4])
    up.copy(at.there[4:], kept[8:12])
    at.lane.copy_back(kept[4:8], at.there[:4])
    at.compute.wait(up.mark())
    at.there[4:].add_(1)
    at.lane.drain()
    assert at.hazards == ()
    assert kept.tolist() == [1.0] * 8 + list(map(float, range(8, 16)))


def test_in_strict_mode_a_missing_wait_is_an_error() -> None:
    """With the bytes in it."""
    at = Setting(virtual(lanes="strict"))
    at.lane.wait(at.compute.mark())
    at.there.mul_(2)
    with pytest.raises(JobFailed, match=r"a lane copies 32 B back that aten.*may still be writing"):
        at.lane.copy_back(at.here, at.there)
