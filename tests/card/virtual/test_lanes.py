"""Lanes of a virtual card: the right waits change nothing, and a missing one shows."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

import pytest
import torch

from tightfit.card import open_card, open_cards
from tightfit.card.lanes import Lane, Mark
from tightfit.card.virtual.card import VirtualCard
from tightfit.card.virtual.traffic import MOST_HAZARDS
from tightfit.errors import JobFailed
from tightfit.place.lanes import compute_of, open_lane
from tightfit.testing import faults, oom_after
from tightfit.units import MIB

WIDTH = 16
BLOCK = 4 * WIDTH * WIDTH


def virtual(
    *, lanes: bool | Literal["strict"] = True, seed: int | None = None, text: str = "8MiB"
) -> VirtualCard:
    card = open_card(f"virtual:{text}")
    assert isinstance(card, VirtualCard)
    card.faults.lanes = lanes
    card.faults.lane_seed = seed
    return card


@pytest.fixture(name="card")
def empty_in_the_end() -> Iterator[VirtualCard]:
    """A card with the switch on, whose books add up to nothing afterwards."""
    card = virtual()
    yield card
    gc.collect()
    card.check()
    assert card.read().allocated == 0


def weights(count: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    return [torch.randn(WIDTH, WIDTH, generator=draw) / 4 for _ in range(count)]


def given() -> torch.Tensor:
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(6))


@dataclass
class Streamer:
    """The smallest ring: slots in one storage, copies one look ahead, and which waits it makes."""

    card: VirtualCard
    blocks: list[torch.Tensor]
    slots: int = 2
    lanes: int = 1
    ready: bool = True
    free: bool = True
    ring: list[torch.Tensor] = field(init=False)
    own: list[Lane] = field(init=False)

    def __post_init__(self) -> None:
        self.ring = list(torch.empty(self.slots, WIDTH, WIDTH, device=self.card.device).unbind())
        self.compute = compute_of(self.card)
        self.own = [open_lane(self.card) for _ in range(self.lanes)]
        self.used: list[Mark] = [self.compute.mark()] * self.slots
        self.came: list[Mark] = self.used.copy()

    def fetch(self, number: int) -> None:
        """Queue the copy of a block to its slot."""
        slot, lane = number % self.slots, self.own[number % self.lanes]
        if self.free:
            lane.wait(self.used[slot])
        if self.ready:
            lane.wait(self.came[slot])  # whichever lane filled the slot before
        lane.copy(self.ring[slot], self.blocks[number % len(self.blocks)])
        self.came[slot] = lane.mark()

    def run(self, value: torch.Tensor, *, steps: int = 2) -> torch.Tensor:
        """All blocks, several times over."""
        last = steps * len(self.blocks)
        for number in range(min(self.slots, last)):
            self.fetch(number)
        for number in range(last):
            slot = number % self.slots
            if self.ready:
                self.compute.wait(self.came[slot])
            value = torch.tanh(value @ self.ring[slot])
            self.used[slot] = self.compute.mark()
            if number + self.slots < last:
                self.fetch(number + self.slots)
        return value


def resident(card: VirtualCard, blocks: list[torch.Tensor], *, steps: int = 2) -> torch.Tensor:
    value = given().to(card.device)
    for _ in range(steps):
        for block in blocks:
            value = torch.tanh(value @ block.to(card.device))
    return value.cpu()


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_w07_the_right_waits_give_the_same_bits_over_50_schedules(lanes: int) -> None:
    """Whenever copies arrive, compute sees what the host holds; nobody waits on the host."""
    blocks = weights(5)
    wanted = resident(virtual(lanes=False), blocks)
    for seed in (None, *range(50)):
        card = virtual(seed=seed, lanes="strict")
        streamer = Streamer(card, blocks, slots=1 + (seed or 0) % 4, lanes=lanes)
        value = streamer.run(given().to(card.device))
        assert card.syncs == 0
        assert torch.equal(value.cpu(), wanted)
        assert card.hazards == ()
        del streamer, value
        assert card.read().allocated == 0
        card.check()


@pytest.mark.parametrize("seed", [None, *range(10)])
@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("missing", ["ready", "free"])
def test_w07_a_missing_wait_shows_as_nan_whatever_the_schedule(
    missing: str, slots: int, seed: int | None
) -> None:
    """Compute before its copy, or a copy over what compute still reads."""
    card = virtual(seed=seed)
    streamer = Streamer(
        card, weights(5), slots=slots, ready=missing != "ready", free=missing != "free"
    )
    value = streamer.run(given().to(card.device)).cpu()
    assert value.isnan().all()
    assert card.hazards


@pytest.mark.parametrize(
    ("missing", "sentence"), [("ready", "may still be copying"), ("free", "may still use")]
)
def test_w07_a_missing_wait_is_an_error_in_strict_mode(missing: str, sentence: str) -> None:
    """The operator or the copy is named, with its bytes, and nothing is left behind."""
    card = virtual(lanes="strict")
    streamer = Streamer(card, weights(5), ready=missing != "ready", free=missing != "free")
    with pytest.raises(JobFailed, match=sentence) as caught:
        streamer.run(given().to(card.device))
    assert "1.0 KiB" in str(caught.value)
    del caught, streamer
    gc.collect()
    assert card.read().allocated == 0


def test_a_target_is_poisoned_until_somebody_waits(card: VirtualCard) -> None:
    """NaN in what floats, all bits elsewhere, and the bytes after the wait."""
    lane, compute = open_lane(card), compute_of(card)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        target = torch.zeros(8, device=card.device).to(dtype)
        lane.wait(compute.mark())
        source = torch.ones(8).to(dtype)
        lane.copy(target, source)
        assert target.payload.float().isnan().all()  # type: ignore[attr-defined]
        compute.wait(lane.mark())
        assert target.payload.float().eq(1).all()  # type: ignore[attr-defined]
    for value, dtype in ((255, torch.uint8), (-1, torch.int64), (1, torch.bool)):
        target = torch.zeros(8, dtype=dtype, device=card.device)
        lane.wait(compute.mark())
        source = torch.zeros(8, dtype=dtype)
        lane.copy(target, source)
        assert target.payload.eq(value).all()  # type: ignore[attr-defined]
        compute.wait(lane.mark())
        assert target.payload.eq(0).all()  # type: ignore[attr-defined]
    assert card.hazards == ()


def test_slots_of_one_storage_are_told_apart(card: VirtualCard) -> None:
    """A copy to one slot while compute reads its neighbour is no hazard; over the edge it is."""
    ring = torch.zeros(4, 8, device=card.device)
    lane, compute = open_lane(card), compute_of(card)
    lane.wait(compute.mark())
    kept = ring[1] + 1
    source = torch.ones(8)
    lane.copy(ring[2], source)
    kept = kept + ring[3] + ring[:2].sum()
    assert card.hazards == ()
    lane.copy(ring.view(-1)[12:16], source[:4])
    assert len(card.hazards) == 1
    assert kept.isnan().all()
    card.sync()


def test_drain_waits_on_the_host_and_is_counted(card: VirtualCard) -> None:
    """After it compute may read, and the source may go."""
    target = torch.zeros(8, device=card.device)
    lane = open_lane(card)
    lane.wait(compute_of(card).mark())
    lane.copy(target, torch.ones(8))
    assert card.syncs == 0
    # The source of that copy is gone: nobody but the caller could have kept it.
    lane.drain()
    assert card.syncs == 1
    assert card.hazards == ("the source of a copy of 32 B was freed before the copy was done",)
    source = torch.ones(8)
    lane.copy(target, source)
    lane.drain()
    del source
    assert target.cpu().eq(1).all()
    assert len(card.hazards) == 1


def test_a_source_that_is_written_to_too_early_never_arrives(card: VirtualCard) -> None:
    """A bounce buffer is filled anew only after a mark behind its copy was waited for."""
    target = torch.zeros(2, 8, device=card.device)
    buffer = torch.ones(8)
    lane, compute = open_lane(card), compute_of(card)
    lane.wait(compute.mark())
    lane.copy(target[0], buffer)
    lane.mark().drain()
    buffer.fill_(2)
    lane.copy(target[1], buffer)
    buffer.fill_(3)
    compute.wait(lane.mark())
    assert card.hazards == ("the source of a copy of 32 B was written to before the copy was done",)
    assert target[0].cpu().eq(1).all()
    assert target[1].cpu().isnan().all()


def test_memory_freed_under_a_copy_is_a_hazard_and_its_bytes_are_poisoned() -> None:
    """Unless compute, which may take that memory next, waits for the copy."""
    for waits in (True, False):
        card = virtual()
        target = torch.zeros(8, device=card.device)
        source = torch.ones(8)
        lane, compute = open_lane(card), compute_of(card)
        lane.wait(compute.mark())
        lane.copy(target, source)
        if waits:
            compute.wait(lane.mark())
        late = target.payload  # type: ignore[attr-defined]
        del target
        assert [("freed while" in each) for each in card.hazards] == ([] if waits else [True])
        assert late.isnan().all()
        lane.drain()
        assert late.isnan().all()
        assert card.read().allocated == 0


def test_fresh_memory_needs_a_wait_for_whoever_held_it() -> None:
    """An allocator hands memory out while the compute queue is still at work in it."""
    for waits in (True, False):
        card = virtual()
        lane, compute = open_lane(card), compute_of(card)
        target, source = torch.empty(8, device=card.device), torch.ones(8)
        if waits:
            lane.wait(compute.mark())
        lane.copy(target, source)
        assert bool(card.hazards) is not waits
        lane.drain()


def test_a_mark_may_be_waited_for_twice_and_out_of_order(card: VirtualCard) -> None:
    """Waiting for a later mark covers the earlier ones; waiting again changes nothing."""
    ring = torch.zeros(3, 8, device=card.device)
    lane, compute = open_lane(card), compute_of(card)
    lane.wait(compute.mark())
    sources = [torch.full((8,), float(number)) for number in range(3)]
    marks = []
    for slot, source in zip(ring, sources, strict=True):
        lane.copy(slot, source)
        marks.append(lane.mark())
    compute.wait(marks[1])
    both = ring[0] + ring[1]
    compute.wait(marks[0])
    compute.wait(marks[1])
    assert card.hazards == ()
    compute.wait(marks[2])
    compute.wait(marks[2])
    assert (both + ring[2]).cpu().eq(3).all()
    assert card.hazards == ()


def test_a_mark_set_anew_counts_from_then_on(card: VirtualCard) -> None:
    """The same object stands for the later point; who waited before waited for the earlier one."""
    ring = torch.zeros(2, 8, device=card.device)
    lane, compute = open_lane(card), compute_of(card)
    lane.wait(compute.mark())
    source = torch.ones(8)
    lane.copy(ring[0], source)
    mark = lane.mark()
    compute.wait(mark)
    lane.copy(ring[1], source)
    assert lane.mark(again=mark) is mark
    assert ring[0].sum().isfinite()
    assert card.hazards == ()
    assert ring[1].sum().isnan()
    compute.wait(mark)
    assert ring[1].sum() == 8
    assert len(card.hazards) == 1


def test_a_mark_covers_nothing_that_was_queued_after_it(card: VirtualCard) -> None:
    """Neither a copy for compute, nor an operator for a lane."""
    slot, source = torch.zeros(8, device=card.device), torch.ones(8)
    lane, compute = open_lane(card), compute_of(card)
    used, came = compute.mark(), lane.mark()
    lane.wait(used)
    lane.copy(slot, source)
    compute.wait(came)
    assert slot.sum().isnan()
    assert len(card.hazards) == 1
    compute.wait(lane.mark())
    total = slot.sum()
    lane.wait(used)
    lane.copy(slot, source)
    assert total.isnan()
    assert len(card.hazards) == 2
    card.sync()


def test_a_copy_to_one_slot_forgives_nothing_in_another(card: VirtualCard) -> None:
    """A use of slot 1 is remembered while slot 0 is filled anew, and forgotten with its own."""
    ring, source = torch.zeros(2, 8, device=card.device), torch.ones(8)
    lane, compute = open_lane(card), compute_of(card)
    lane.wait(compute.mark())
    total = ring[1].sum()
    lane.copy(ring[0], source)
    assert card.hazards == ()
    lane.copy(ring[1], source)
    assert total.isnan()
    assert len(card.hazards) == 1
    lane.copy(ring[1], source)
    assert len(card.hazards) == 1
    card.sync()


def test_a_copy_during_an_operator_spoils_what_comes_out_of_it(
    card: VirtualCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread's copy, when the values were read and nobody holds the result yet."""
    slot, source = torch.zeros(8, device=card.device), torch.ones(8)
    lane, compute = open_lane(card), compute_of(card)
    lane.wait(compute.mark())
    monkeypatch.setattr(card, "ceiling", lambda: lane.copy(slot, source))  # asked after computing
    total = slot.exp()
    assert total.isnan().all()
    monkeypatch.undo()
    assert len(card.hazards) == 1
    card.sync()


def test_a_lane_that_is_opened_after_a_wait_knows_of_it(card: VirtualCard) -> None:
    """What the host has seen done is done for everybody who comes later."""
    slot, source = torch.zeros(8, device=card.device), torch.ones(8)
    card.sync()
    lane = open_lane(card)
    lane.copy(slot, source)
    lane.drain()
    assert slot.cpu().eq(1).all()
    assert card.hazards == ()


def test_a_resized_storage_keeps_its_values(card: VirtualCard) -> None:
    """Its books are closed and opened anew, and nothing was freed."""
    slot, source = torch.zeros(8, device=card.device), torch.ones(8)
    lane, compute = open_lane(card), compute_of(card)
    lane.wait(compute.mark())
    lane.copy(slot, source)
    compute.wait(lane.mark())
    slot.resize_(1000)
    assert slot[:8].cpu().eq(1).all()
    assert card.hazards == ()


def test_two_lanes_to_the_same_bytes_need_an_order(card: VirtualCard) -> None:
    """With a wait the later copy wins; without one it is a hazard."""
    target = torch.zeros(8, device=card.device)
    first, second, compute = open_lane(card), open_lane(card), compute_of(card)
    start = compute.mark()
    first.wait(start)
    second.wait(start)
    one, two = torch.ones(8), torch.full((8,), 2.0)
    first.copy(target, one)
    second.wait(first.mark())
    second.copy(target, two)
    compute.wait(second.mark())
    assert card.hazards == ()
    assert target.cpu().eq(2).all()
    first.copy(target, one)
    second.copy(target, two)
    assert any("two lanes" in each for each in card.hazards)
    first.drain()
    second.drain()


def test_cards_have_queues_of_their_own_and_may_wait_for_one_another() -> None:
    """A mark of one card orders the other; a copy belongs to the card of its lane."""
    left, right = open_cards("virtual:2x1MiB")
    assert isinstance(left, VirtualCard)
    assert isinstance(right, VirtualCard)
    for card in (left, right):
        card.faults.lanes = True
    target = torch.zeros(8, device=right.device)
    source = torch.ones(8)
    lane = open_lane(right)
    with pytest.raises(ValueError, match="copies from the host to the card"):
        open_lane(left).copy(target, source)
    lane.wait(compute_of(right).mark())
    lane.copy(target, source)
    compute_of(left).wait(lane.mark())
    compute_of(right).wait(compute_of(left).mark())
    assert target.cpu().eq(1).all()
    compute_of(left).mark().drain()
    lane.wait(compute_of(right).mark())
    lane.copy(target, source)
    compute_of(left).wait(lane.mark())
    compute_of(left).mark().drain()
    assert (left.syncs, right.syncs) == (2, 0)
    assert target.sum().item() == 8
    assert left.hazards == right.hazards == ()


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_thread_may_queue_the_copies(seed: int | None, free: bool) -> None:
    """Marks carry the order from thread to thread; without one of them it shows."""
    blocks = weights(12)
    card = virtual(seed=seed)
    slot = torch.empty(WIDTH, WIDTH, device=card.device)
    lane, compute = open_lane(card), compute_of(card)
    full, empty = threading.Semaphore(0), threading.Semaphore(1)
    used = came = compute.mark()

    def fetch() -> None:
        nonlocal came
        for block in blocks:
            empty.acquire()
            if free:
                lane.wait(used)
            lane.copy(slot, block)
            came = lane.mark()
            full.release()

    worker = threading.Thread(target=fetch)
    worker.start()
    value = given().to(card.device)
    for _ in blocks:
        full.acquire()
        compute.wait(came)
        value = torch.tanh(value @ slot)
        used = compute.mark()
        empty.release()
    worker.join()
    wanted = resident(virtual(lanes=False), blocks, steps=1)
    assert torch.equal(value.cpu(), wanted) is free
    assert bool(card.hazards) is not free


def test_threads_with_cards_of_their_own_do_not_meet() -> None:
    """Four at once: the bits of one alone, and no hazard."""
    blocks = weights(4)
    wanted = resident(virtual(lanes=False), blocks)
    found: list[bool] = []

    def work(seed: int) -> None:
        card = virtual(seed=seed, lanes="strict")
        value = Streamer(card, blocks, lanes=2).run(given().to(card.device))
        found.append(torch.equal(value.cpu(), wanted) and card.hazards == ())

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [True] * 4


def test_a_synchronisation_is_a_wait(card: VirtualCard) -> None:
    """After `sync` all is done; an answer to the host waits for compute alone."""
    target, source = torch.zeros(8, device=card.device), torch.ones(8)
    lane = open_lane(card)
    target.sum().item()
    lane.copy(target, source)
    assert card.hazards == ()
    assert card.syncs == 0
    card.sync()
    assert target.sum().item() == 8
    assert card.hazards == ()
    lane.copy(target, source)
    assert torch.zeros(1, device=card.device).item() == 0
    assert target.cpu().isnan().all()
    assert len(card.hazards) == 1
    card.sync()


def test_an_answer_to_the_host_is_poisoned_too(card: VirtualCard) -> None:
    """What arrived by luck is no excuse: the host gets NaN in every form of reading."""
    lane, compute = open_lane(card), compute_of(card)
    target, source, host = torch.zeros(8, device=card.device), torch.ones(8), torch.zeros(8)
    lane.wait(compute.mark())
    lane.copy(target, source)
    card.faults.lane_seed = 0
    early = target.payload  # type: ignore[attr-defined]
    while early.isnan().any():
        compute.mark()
    host.copy_(target)
    assert host.isnan().all()
    assert target.cpu().isnan().all()
    card.sync()
    assert target.cpu().eq(1).all()


def test_operators_that_look_at_shapes_alone_read_nothing(card: VirtualCard) -> None:
    """`zeros_like` and views of a slot need no wait."""
    lane, compute = open_lane(card), compute_of(card)
    target, source = torch.zeros(2, 8, device=card.device), torch.ones(2, 8)
    lane.wait(compute.mark())
    lane.copy(target, source)
    assert torch.zeros_like(target)[0].sum() == 0
    assert target.view(4, 4)[:1].detach().shape == (1, 4)
    assert card.hazards == ()
    card.sync()


def test_writing_over_a_copy_under_way_is_a_hazard(card: VirtualCard) -> None:
    """Compute that clears a slot has to wait for the copy to it as well."""
    lane, compute = open_lane(card), compute_of(card)
    target, source = torch.zeros(8, device=card.device), torch.ones(8)
    lane.wait(compute.mark())
    lane.copy(target, source)
    target.zero_()
    assert len(card.hazards) == 1
    card.sync()


def test_resident_weights_are_not_spoilt_by_a_hazard_elsewhere() -> None:
    """What came from the host, and what was computed before, stays as it is."""
    card = virtual()
    resident_weight = weights(1)[0].to(card.device)
    before = resident_weight @ resident_weight
    lane, compute = open_lane(card), compute_of(card)
    slot, source = torch.zeros(WIDTH, WIDTH, device=card.device), weights(1)[0]
    lane.wait(compute.mark())
    wrong = slot @ resident_weight
    later = torch.ones_like(resident_weight)
    lane.copy(slot, source)
    assert wrong.isnan().all()
    for right in (before, resident_weight, later):
        assert right.isfinite().all()
    card.sync()


def test_no_more_sentences_are_kept_than_anybody_reads(card: VirtualCard) -> None:
    """A faulty loop does not fill the host's memory."""
    target, source = torch.zeros(8, device=card.device), torch.ones(8)
    lane = open_lane(card)
    for _ in range(MOST_HAZARDS):
        lane.copy(target, source)
        target.add_(1)
    assert len(card.hazards) == MOST_HAZARDS
    card.sync()


@pytest.mark.parametrize("lanes", [True, False])
@pytest.mark.parametrize(("text", "waits"), [("32MB", 9), ("97MB", 0)])
def test_w08_a_loader_waits_for_a_point_when_there_is_no_room(
    lanes: bool, text: str, waits: int
) -> None:
    """12 x 8 MB: through 32 MB by waiting for the oldest free, through all of it by none."""
    card = virtual(text=text, lanes=lanes)
    lane, compute = open_lane(card), compute_of(card)
    source = torch.ones(2_000_000)
    marks: list[Mark] = []
    sums = []
    with faults(card, delayed_frees=True):
        for _ in range(12):
            if (card.read().free or 0) < 8_001_000:
                marks.pop(0).drain()
            target = torch.empty(2_000_000, device=card.device)
            lane.wait(compute.mark())
            lane.copy(target, source)
            compute.wait(lane.mark())
            sums.append(target[:8].clone())
            del target
            marks.append(compute.mark())
    assert card.syncs == waits
    assert (card.read().peak_reserved or 0) <= card.read().total
    assert all(each.cpu().eq(1).all() for each in sums)
    assert card.hazards == ()


def test_w08_a_mark_counts_no_frees_that_came_after_it() -> None:
    """Waiting for the past does not bring the present."""
    card = virtual(text="32MiB")
    compute = compute_of(card)
    with faults(card, delayed_frees=True):
        torch.empty(2 * MIB, device=card.device)
        early = compute.mark()
        torch.empty(4 * MIB, device=card.device)
        late = compute.mark()
        early.drain()
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(7 * MIB, device=card.device)
        late.drain()
        early.drain()
        torch.empty(7 * MIB, device=card.device)


def test_an_error_that_was_kept_back_comes_out_where_the_host_waits() -> None:
    """As on an asynchronous device: a drain is a synchronisation."""
    card = virtual()
    lane = open_lane(card)
    with oom_after(card, 0, late=True):
        torch.empty(8, device=card.device)
    with pytest.raises(torch.OutOfMemoryError):
        lane.drain()
    lane.drain()


def test_with_the_switch_off_copies_happen_at_once_and_nothing_is_noted() -> None:
    """The same values as with it on, no clock, no mark of a storage, no operator more."""
    blocks = weights(5)
    card = virtual(lanes=False)
    streamer = Streamer(card, blocks, ready=False, free=False)
    streamer.own[0].copy(streamer.ring[0], blocks[0])
    assert torch.equal(streamer.ring[0].cpu(), blocks[0])
    value = streamer.run(given().to(card.device))
    assert torch.equal(value.cpu(), resident(card, blocks))
    assert card.hazards == ()
    assert streamer.ring[0].charge.uses is None  # type: ignore[attr-defined]
    assert streamer.compute.mark().clock == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize("inference", [True, False])
def test_tensors_made_in_inference_mode_are_targets_as_well(inference: bool) -> None:
    """A ring made inside or outside of it, used on the other side."""
    blocks = weights(4)
    card = virtual(lanes="strict")
    with torch.inference_mode() if inference else nullcontext():
        streamer = Streamer(card, blocks)
        value = given().to(card.device)
    with nullcontext() if inference else torch.inference_mode():
        value = streamer.run(value)
    assert torch.equal(value.cpu(), resident(virtual(lanes=False), blocks))


def test_random_programs_with_the_right_waits_have_no_hazard() -> None:
    """Any number of lanes and slots, blocks in any order, some read twice, some not at all."""
    for seed in range(12):
        luck = random.Random(seed)
        card = virtual(lanes="strict", seed=seed)
        blocks = weights(6)
        slots, lanes = luck.randint(1, 4), [open_lane(card) for _ in range(luck.randint(1, 3))]
        ring = torch.empty(slots * BLOCK, dtype=torch.uint8, device=card.device)
        views = [
            ring[at : at + BLOCK].view(torch.float32).view(WIDTH, WIDTH)
            for at in range(0, slots * BLOCK, BLOCK)
        ]
        compute = compute_of(card)
        free = [compute.mark()] * slots
        value, plain = given().to(card.device), given().to(card.device)
        for number in range(40):
            slot, block, lane = luck.randrange(slots), luck.choice(blocks), luck.choice(lanes)
            lane.wait(free[slot])
            lane.copy(ring[slot * BLOCK : (slot + 1) * BLOCK], block.view(-1).view(torch.uint8))
            ready = lane.mark()
            compute.wait(ready)
            for _ in range(luck.randint(0, 2)):
                value = torch.tanh(value @ views[slot])
                plain = torch.tanh(plain @ block.to(card.device))
            free[slot] = compute.mark(again=free[slot] if number >= slots * 20 else None)
        assert torch.equal(value.cpu(), plain.cpu())
        assert card.hazards == ()
