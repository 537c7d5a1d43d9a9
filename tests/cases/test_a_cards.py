"""Group A, and D02: whose figures a card answers with, and what is planned from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch

from tests.card.stub_nvml import StubDevice, StubNvml
from tests.cases.common import assert_usable, measured, run_checked, untold, virtual
from tightfit.api import decode
from tightfit.card import Reading, bandwidth, nvml, open_card
from tightfit.card.backends import read_counting_free, read_recommending
from tightfit.card.nvml import devices, match, visible
from tightfit.errors import MemoryShortage
from tightfit.plan.tilesize import parse_tile
from tightfit.run.checkup import check_up
from tightfit.run.job import Job, Request
from tightfit.testing import faults, other_program, toy_vae
from tightfit.units import GIB, MIB

CARD = 64 * MIB


def latent(side: int = 64) -> torch.Tensor:
    """[1,4,side,side] in 0..1, always the same."""
    return torch.rand(1, 4, side, side, generator=torch.Generator().manual_seed(side))


@cache
def reference(side: int = 64) -> torch.Tensor:
    """What a card without limits makes of `latent`."""
    return measured(toy_vae("V2"), "decode", latent(side)).value


# A02


@pytest.mark.parametrize("allocator", ["exact", "native", "async", "expandable"])
def test_a02_a_limit_that_was_set_before_us_is_planned_with(allocator: str) -> None:
    """32 of 64: the whole is known not to fit before it is tried, and the limit holds."""
    vae, source = toy_vae("V2"), latent()
    card = virtual(f"64MiB,allocator={allocator},context=2MiB,grain=2MiB")
    with card.cap(32 * MIB):
        outcome = run_checked(Job(vae, "decode", card, Request(CARD)), source, reference())
        first = outcome.attempts[0]
        assert (first.rung, first.outcome) == ("whole", "skipped")
        assert outcome.peak_reserved_bytes is not None
        assert outcome.peak_reserved_bytes <= 32 * MIB
        assert outcome.ledger["context"] == (2 * MIB, "measured")


def test_a02_without_the_limit_the_same_job_is_whole() -> None:
    """On the same card: the limit of before is gone with its owner."""
    card = virtual("64MiB")
    job = Job(toy_vae("V2"), "decode", card, Request(CARD))
    with card.cap(32 * MIB):
        assert run_checked(job, latent()).attempts[0].outcome == "skipped"
    assert run_checked(job, latent()).attempt.rung == "whole"


def test_a02_what_is_free_is_the_smaller_of_the_device_and_the_limit() -> None:
    """Free on the device, or the limit less what is reserved; the context is in neither."""
    card = virtual("64MiB,context=4MiB")
    kept = torch.zeros(10 * MIB // 4, device=card.device)
    assert card.read().takeable == card.read().free == 50 * MIB
    with card.cap(32 * MIB):
        reading = card.read()
        assert (reading.free, reading.limit, reading.takeable) == (50 * MIB, 32 * MIB, 22 * MIB)
        with other_program(card, 40 * MIB):
            assert card.read().takeable == 10 * MIB
    assert card.read().limit is None
    del kept


def test_a02_a_refusal_names_the_limit() -> None:
    """Not the card, which has room enough."""
    card = virtual("64MiB")
    job = Job(untold(toy_vae("V2")), "decode", card, Request(CARD, wish=parse_tile("off")))
    with card.cap(32 * MIB), pytest.raises(MemoryShortage, match=r"limited to 32\.0 MiB"):
        job.run(latent())


@pytest.mark.gpu
def test_a02_half_of_a_real_card() -> None:
    """A fraction that the user set bounds what is planned, and is theirs again afterwards."""
    card = open_card("cuda:0")
    assert card.read().limit is None
    torch.cuda.set_per_process_memory_fraction(0.5)
    try:
        reading = card.read()
        total = torch.cuda.get_device_properties(0).total_memory
        assert reading.limit == pytest.approx(total // 2, abs=2)
        assert reading.takeable is not None
        assert reading.free is not None
        assert reading.reserved is not None
        assert reading.takeable == min(reading.free, (reading.limit or 0) - reading.reserved)
        with card.cap(reading.total):
            assert card.read().limit == pytest.approx(total // 2, rel=0.01)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


# A03


@pytest.mark.parametrize("reserve", [0, 4 * MIB])
@pytest.mark.parametrize("side", [48, 64])
def test_a03_what_others_hold_is_not_planned_with(reserve: int, side: int) -> None:
    """24 of 64 are gone: at most 40 less the reserve are used, and nothing is tried in vain."""
    card = virtual("64MiB")
    with other_program(card, 24 * MIB):
        job = Job(toy_vae("V2"), "decode", card, Request(CARD, reserve=reserve))
        outcome = run_checked(job, latent(side), reference(side))
        assert card.read().held_by_others == 24 * MIB
    assert outcome.peak_reserved_bytes is not None
    assert outcome.peak_reserved_bytes <= 40 * MIB - reserve
    assert {attempt.outcome for attempt in outcome.attempts} <= {"skipped", "ok"}
    assert outcome.ledger["held_by_others"] == (24 * MIB, "measured")
    assert_usable(card)


def test_a03_the_report_says_what_others_hold() -> None:
    """In the ledger of a job that was done, and in the sentence of one that was refused."""
    card = virtual("64MiB,others=24MiB")
    done = decode(latent(), vae=toy_vae("V2"), card=card)
    assert done.report.ledger["held_by_others"] == {"bytes": 24 * MIB, "source": "measured"}
    with pytest.raises(MemoryShortage, match=r"24\.0 MiB held by other programs"):
        decode(latent(), vae=untold(toy_vae("V2")), card=card, tile="off")


# A07


@dataclass
class Pool:
    """A device as it is, and an allocator that keeps what it took: the truth behind a back end."""

    total: int
    others: int
    grain: int = 20 * MIB
    live: int = 0
    taken: int = 0
    peaks: list[int] = field(default_factory=lambda: [0, 0])

    def allocate(self, size: int) -> None:
        """From what was taken already, else in steps of the grain."""
        self.live += size
        while self.taken < self.live:
            self.taken += self.grain
        self.peaks = [max(self.peaks[0], self.live), max(self.peaks[1], self.taken)]


class CudaLike:
    """`torch.cuda` and `torch.xpu`, as far as they are asked; some drivers cannot tell free."""

    def __init__(self, pool: Pool, *, tells_free: bool = True) -> None:
        self.pool, self.tells_free = pool, tells_free

    def mem_get_info(self, device: int) -> tuple[int, int]:
        if not self.tells_free:
            raise RuntimeError(f"device {device} does not support querying the free memory")
        return self.pool.total - self.pool.others - self.pool.taken, self.pool.total

    def memory_allocated(self, _: int) -> int:
        return self.pool.live

    def memory_reserved(self, _: int) -> int:
        return self.pool.taken

    def max_memory_allocated(self, _: int) -> int:
        return self.pool.peaks[0]

    def max_memory_reserved(self, _: int) -> int:
        return self.pool.peaks[1]


class MpsLike:
    """`torch.mps`."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def recommended_max_memory(self) -> int:
        return self.pool.total

    def current_allocated_memory(self) -> int:
        return self.pool.live

    def driver_allocated_memory(self) -> int:
        return self.pool.taken


BACKENDS: dict[str, Callable[[Pool], Reading]] = {
    "cuda": lambda pool: read_counting_free(CudaLike(pool), 0, total=0, context=0),
    "xpu": lambda pool: read_counting_free(CudaLike(pool), 1, total=pool.total),
    "mps": lambda pool: read_recommending(MpsLike(pool)),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a07_every_back_end_tells_the_same_truth(backend: str) -> None:
    """Used and free are the total; 10 MB more are 10 MB more; the cache is usable, once."""
    others = 0 if backend == "mps" else 100 * MIB
    pool = Pool(total=GIB, others=others)
    read = BACKENDS[backend]
    for step in range(8):
        reading = read(pool)
        assert reading.used is not None
        assert reading.usable is not None
        assert reading.used == others + step * 10 * MIB
        assert reading.used + reading.usable == reading.total == GIB
        assert reading.allocated == step * 10 * MIB
        pool.allocate(10 * MIB)
    pool.live = 0
    emptied = read(pool)
    assert emptied.reserved == 80 * MIB
    assert (emptied.used, emptied.slack) == (others, 80 * MIB)
    assert emptied.usable == GIB - others
    assert emptied.free == GIB - others - 80 * MIB


def test_a07_what_others_hold_is_what_is_left_of_the_total() -> None:
    """Where the context is known; else it cannot be told from them."""
    pool = Pool(total=GIB, others=100 * MIB)
    pool.allocate(30 * MIB)
    assert BACKENDS["cuda"](pool).held_by_others == 100 * MIB
    told = read_counting_free(CudaLike(pool), 0, total=GIB, context=40 * MIB)
    assert told.held_by_others == 60 * MIB
    assert BACKENDS["xpu"](pool).held_by_others is None
    assert BACKENDS["mps"](pool).held_by_others is None


def test_a07_a_driver_that_cannot_tell_what_is_free_is_not_asked_to_guess() -> None:
    """The total less what we took would be a lie wherever somebody else is on the card."""
    pool = Pool(total=GIB, others=100 * MIB)
    pool.allocate(10 * MIB)
    reading = read_counting_free(CudaLike(pool, tells_free=False), 0, total=GIB)
    assert reading.total == GIB
    assert (reading.allocated, reading.reserved) == (10 * MIB, 20 * MIB)
    assert reading.free is reading.used is reading.usable is reading.held_by_others is None


@pytest.mark.parametrize("allocator", ["exact", "native", "async", "expandable"])
def test_a07_the_virtual_card_keeps_to_it_too(allocator: str) -> None:
    """Context and others are used; slack is usable."""
    card = virtual(f"256MiB,allocator={allocator},context=4MiB,others=8MiB")
    kept = []
    for step in range(5):
        reading = card.read()
        assert reading.used == 12 * MIB + step * 10 * MIB
        assert reading.usable == 256 * MIB - reading.used
        kept.append(torch.zeros(10 * MIB // 4, device=card.device))
    del kept


# A10


SPILLING = ["64MiB", "64MiB,context=4MiB,others=8MiB", "64MiB,allocator=native,others=8MiB"]


def test_a10_a_card_in_spill_mode_grants_what_it_does_not_have() -> None:
    """Nothing is raised; only the tag tells."""
    card = virtual("64MiB")
    with faults(card, spill=True):
        kept = torch.zeros(80 * MIB // 4, device=card.device)
        assert card.spilled == 16 * MIB
        assert card.spills
        del kept
    assert not card.spills


@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
@pytest.mark.parametrize("side", [48, 64, 80])
@pytest.mark.parametrize("spec", SPILLING)
def test_a10_our_own_ceiling_holds_where_the_driver_s_does_not(
    spec: str, side: int, estimate: bool
) -> None:
    """Small, medium, large: no byte is granted beyond the card, whoever else is on it."""
    card = virtual(spec)
    job = Job(toy_vae("V2"), "decode", card, Request(CARD, estimate=estimate))
    with faults(card, spill=True):
        run_checked(job, latent(side), reference(side))
        assert card.spilled == 0
        assert_usable(card)


def test_a10_the_reserve_stays_free_too() -> None:
    """What is kept for others is not filled from the host's memory either."""
    card = virtual("64MiB,others=8MiB")
    request = Request(CARD, reserve=10 * MIB, estimate=False)
    with faults(card, spill=True):
        outcome = run_checked(Job(toy_vae("V2"), "decode", card, request), latent())
    assert outcome.attempts[0].outcome == "oom"
    assert outcome.peak_reserved_bytes is not None
    assert outcome.peak_reserved_bytes <= 46 * MIB


@pytest.mark.parametrize("told", [True, False], ids=["strips", "tiles"])
def test_a10_another_program_that_comes_in_between_is_seen_by_the_next_try(told: bool) -> None:
    """The ceiling is what is free when a try begins."""
    vae = toy_vae("V2") if told else untold(toy_vae("V2"))
    card = virtual("64MiB")
    came: list[str] = []

    def arrive(operator: str, size: int) -> None:
        if size > 20 * MIB and not came:
            came.append(operator)
            card.occupy(40 * MIB)

    with faults(card, spill=True, on_allocate=arrive):
        job = Job(vae, "decode", card, Request(CARD, estimate=False))
        outcome = run_checked(job, latent(80), reference(80))
    assert came
    assert outcome.attempts[0].outcome == "oom"
    assert len(outcome.attempts) > 1
    assert all((attempt.peak_reserved_bytes or 0) <= 24 * MIB for attempt in outcome.attempts[1:])


# D02


SMALL = StubDevice("NVIDIA GeForce GTX 1660 SUPER", "GPU-5ma11000", "00000000:01:00.0", 6 * GIB)
LARGE = StubDevice("NVIDIA GeForce RTX 4090", "GPU-1a49e000", "00000000:41:00.0", 24 * GIB)


@pytest.fixture(params=[(SMALL, LARGE), (LARGE, SMALL)], ids=["by bus", "reversed"])
def library(request: pytest.FixtureRequest) -> StubNvml:
    """A management library that numbers two devices one way or the other."""
    return StubNvml(*request.param)


def test_d02_the_list_names_the_card_whatever_number_it_has(library: StubNvml) -> None:
    """By UUID always; by number where CUDA counts by bus id; else unknown."""
    found = devices(library)
    for listed, wanted in ((LARGE.uuid, LARGE), ("1", LARGE), ("1,0", LARGE), ("0", SMALL)):
        shown = visible(found, listed, order="PCI_BUS_ID")
        assert shown is not None
        assert (shown[0].name, shown[0].free) == (wanted.name, wanted.free)
        unsure = visible(found, listed)
        assert unsure == (shown if listed == LARGE.uuid else None)


def test_d02_what_cuda_calls_a_card_finds_its_figures(library: StubNvml) -> None:
    """By UUID; by bus id where there is none; nothing else."""
    found = devices(library)
    for stub in (SMALL, LARGE):
        by_uuid = match(found, uuid=stub.uuid.removeprefix("GPU-"), bus_id="00000000:99:00.0")
        assert by_uuid is not None
        assert by_uuid == match(found, bus_id=stub.bus)
        assert (by_uuid.total, by_uuid.free) == (stub.total, stub.free)
    assert match(found, uuid="GPU-ffffffff", bus_id=LARGE.bus) is None


def test_d02_a_card_that_cannot_be_matched_has_no_device(
    library: StubNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The devices are shown, and none is called the card in use."""
    monkeypatch.setattr(nvml, "_library", lambda: library)
    monkeypatch.setattr(bandwidth, "MOST_BYTES", 4 * MIB)
    found = check_up("virtual:64MiB")
    assert [device.card for device in found.devices] == [None, None]
    assert found.cards[0].device is None
