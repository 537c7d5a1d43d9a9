"""Lanes of a CUDA card: the right waits hold under pressure, and cost neither bytes nor waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.common import driver_calls, waits_refused
from tightfit.card import Card, open_card
from tightfit.card.lanes import Lane, Queue
from tightfit.place.lanes import compute_of, open_lane

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]
WIDTH = 1024
BUSY = 20


@pytest.fixture(name="card")
def opened() -> Iterator[Card]:
    """The first CUDA card, checked to be empty of this test afterwards."""
    card = open_card("cuda:0")
    torch.zeros(8, 8, device="cuda") @ torch.zeros(8, 8, device="cuda")  # its library's own room
    card.trim()
    before = card.read().allocated
    yield card
    card.sync()
    card.trim()
    card.check()
    assert card.read().allocated == before


def pinned(count: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    return [(torch.randn(WIDTH, WIDTH, generator=draw) / 32).pin_memory() for _ in range(count)]


def stream(
    lanes: list[Lane],
    compute: Queue,
    *,
    blocks: list[torch.Tensor],
    ring: list[torch.Tensor],
    value: torch.Tensor,
) -> torch.Tensor:
    """Every block once, through the ring; compute is long, so copies would overtake it."""
    used = [compute.mark() for _ in ring]
    came = [compute.mark() for _ in ring]

    def fetch(number: int) -> None:
        slot, lane = number % len(ring), lanes[number % len(lanes)]
        lane.wait(used[slot])
        lane.wait(came[slot])
        lane.copy(ring[slot], blocks[number])
        lane.mark(again=came[slot])

    for number in range(len(ring)):
        fetch(number)
    for number in range(len(blocks)):
        slot = number % len(ring)
        compute.wait(came[slot])
        for _ in range(BUSY):
            value = torch.tanh(value @ ring[slot])
        compute.mark(again=used[slot])
        if number + len(ring) < len(blocks):
            fetch(number + len(ring))
    return value


@pytest.mark.parametrize("lanes", [1, 2])
def test_w07_fifty_runs_are_bit_equal_to_the_resident_one(card: Card, lanes: int) -> None:
    """Two slots, copies ahead of compute, no wait on the host."""
    blocks = pinned(6)
    start = torch.ones(64, WIDTH, device=card.device) / 7
    wanted = start
    for block in blocks:
        held = block.to(card.device)
        for _ in range(BUSY):
            wanted = torch.tanh(wanted @ held)
    ring = list(torch.empty(2, WIDTH, WIDTH, device=card.device).unbind())
    own = [open_lane(card) for _ in range(lanes)]
    compute = compute_of(card)
    for _ in range(50):
        value = stream(own, compute, blocks=blocks, ring=ring, value=start)
        assert torch.equal(value, wanted)
    for lane in own:
        lane.drain()


def test_a_copy_runs_beside_compute_and_a_mark_tells_when(card: Card) -> None:
    """Compute queued before a copy does not hold it up, and a drain waits for the copy alone."""
    lane, compute = open_lane(card), compute_of(card)
    source = torch.ones(WIDTH, WIDTH).pin_memory()
    target = torch.zeros(WIDTH, WIDTH, device=card.device)
    lane.wait(compute.mark())
    torch.cuda._sleep(2_000_000_000)
    behind = torch.cuda.Event()
    behind.record()
    lane.copy(target, source)
    lane.mark().drain()
    assert not behind.query()
    lane.drain()
    assert not behind.query()
    card.sync()
    assert target.eq(1).all()


@pytest.mark.parametrize("memory", ["pinned", "pageable", "rows first", "mixed", "gaps"])
def test_what_is_copied_back_is_what_compute_had_written(card: Card, memory: str) -> None:
    """20 times into the same bytes, each after long work; the host waits for the copy alone."""
    lane, compute = open_lane(card), compute_of(card)
    here = torch.zeros(2, 8, 256, 256)
    if memory == "rows first":
        here = here.contiguous(memory_format=torch.channels_last)
    if memory == "gaps":
        here = torch.zeros(2, 8, 256, 512)[..., ::2]
    elif memory != "pageable":
        here = here.pin_memory()
    there = torch.zeros(2, 8, 256, 256, device=card.device)
    if memory in ("rows first", "mixed"):
        there = there.contiguous(memory_format=torch.channels_last)
    done = lane.mark()
    for number in range(20):
        compute.wait(done)
        torch.cuda._sleep(10_000_000)
        there.fill_(number)
        lane.wait(compute.mark())
        lane.copy_back(here, there)
        lane.mark(again=done)
        done.drain()
        assert here.eq(number).all()
    lane.drain()


def test_a_copy_back_runs_beside_compute_and_returns_at_once(card: Card) -> None:
    """Where it is pinned: it waits on the card for what it was told, and no longer."""
    lane, compute = open_lane(card), compute_of(card)
    here = torch.zeros(WIDTH, WIDTH).pin_memory()
    there = torch.ones(WIDTH, WIDTH, device=card.device)
    torch.cuda._sleep(1_000_000_000)
    before = compute.mark()
    first = torch.cuda.Event()
    first.record()
    torch.cuda._sleep(2_000_000_000)
    behind = torch.cuda.Event()
    behind.record()
    lane.wait(before)
    with waits_refused():
        lane.copy_back(here, there)
    assert not first.query()
    lane.mark().drain()
    assert first.query()
    assert not behind.query()
    assert here.eq(1).all()
    card.sync()


def test_two_lanes_carry_both_ways_through_the_same_host_memory(card: Card) -> None:
    """Rows go up, are doubled and come back to where they were, ten times, unseen by the host."""
    up, down, compute = open_lane(card), open_lane(card), compute_of(card)
    rows = torch.ones(8, WIDTH, WIDTH).pin_memory()
    ring = list(torch.empty(2, WIDTH, WIDTH, device=card.device).unbind())
    sent = [compute.mark() for _ in ring]
    back = [compute.mark() for _ in rows]
    came, made = up.mark(), compute.mark()
    for number in range(10 * len(rows)):
        slot, row = number % len(ring), number % len(rows)
        up.wait(sent[slot])
        up.wait(back[row])
        up.copy(ring[slot], rows[row])
        compute.wait(up.mark(again=came))
        ring[slot].mul_(2)
        down.wait(compute.mark(again=made))
        down.copy_back(rows[row], ring[slot])
        down.mark(again=sent[slot])
        down.mark(again=back[row])
    down.drain()
    assert rows.eq(2**10).all()


def test_the_current_stream_is_the_compute_queue(card: Card) -> None:
    """Callers change streams: marks and waits belong to the stream that is current then."""
    lane, compute = open_lane(card), compute_of(card)
    source = torch.ones(WIDTH, WIDTH).pin_memory()
    target = torch.zeros(WIDTH, WIDTH, device=card.device)
    card.sync()
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        torch.cuda._sleep(500_000_000)
        total = target.sum()
        used = compute.mark()
    lane.wait(used)
    lane.copy(target, source)
    with torch.cuda.stream(other):
        compute.wait(lane.mark())
        after = target.sum()
    lane.drain()
    other.synchronize()
    assert (float(total), float(after)) == (0, WIDTH * WIDTH)


def test_marks_and_waits_neither_allocate_nor_wait(card: Card) -> None:
    """The steady state: PyTorch, told to raise on a synchronisation, has no cause to."""
    blocks = pinned(4)
    ring = list(torch.empty(2, WIDTH, WIDTH, device=card.device).unbind())
    own, compute = [open_lane(card)], compute_of(card)
    start = torch.ones(64, WIDTH, device=card.device)
    stream(own, compute, blocks=blocks, ring=ring, value=start)
    card.sync()
    before = driver_calls()
    with waits_refused():
        stream(own, compute, blocks=blocks, ring=ring, value=start)
    assert driver_calls() == before
    own[0].drain()
    card.sync()


def test_a_mark_of_another_kind_of_card_is_refused(card: Card) -> None:
    """A CUDA queue waits for CUDA's events."""
    with pytest.raises(TypeError, match="cannot wait for"):
        compute_of(card).wait(open_lane(open_card("cpu")).mark())


def test_stamps_tell_how_long_the_card_took(card: Card) -> None:
    """Between two queues, in seconds; a stamp that is set anew tells of the new point."""
    lane, compute = open_lane(card), compute_of(card)
    source = torch.ones(WIDTH, WIDTH).pin_memory()
    target = torch.zeros(WIDTH, WIDTH, device=card.device)
    card.sync()
    began = compute.stamp()
    torch.cuda._sleep(200_000_000)
    lane.wait(compute.mark())
    before = lane.stamp()
    lane.copy(target, source)
    after = lane.stamp()
    assert began is not None
    assert before is not None
    assert after is not None
    waited, copied = before.seconds_since(began), after.seconds_since(before)
    assert 0 < copied < waited < 10
    again = compute.stamp(again=began)
    assert again is began
    assert began.seconds_since(after) > 0
    card.sync()
