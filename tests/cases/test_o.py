"""Group O: falling back when memory runs out."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.cases.common import (
    Idle,
    assert_back,
    assert_usable,
    measured,
    run_checked,
    tried,
    untold,
    virtual,
    weights_and_input,
)
from tightfit.errors import MemoryShortage
from tightfit.plan.tilesize import parse_tile
from tightfit.run.job import Job, Request
from tightfit.run.vae import Direction, Vae
from tightfit.testing import Form, faults, oom_after, toy_vae, wrap_toy
from tightfit.units import MIB

OOM_FORMS = [form for form in Form if form is not Form.ILLEGAL_ACCESS]
TILE = parse_tile("64")


def clip() -> torch.Tensor:
    """[1,3,13,96,96] in -1..1."""
    return torch.rand(1, 3, 13, 96, 96) * 2 - 1


@pytest.fixture
def no_collector() -> Iterator[None]:
    """No automatic collection either: what needs one is seen."""
    gc.disable()
    yield
    gc.enable()


# O01


@pytest.mark.usefixtures("no_collector")
def test_o01_the_tile_fallback_has_the_whole_card_twenty_times() -> None:
    """Fails late, holding most of the card; tiles begin with weights and input, exactly."""
    vae, source = untold(toy_vae("V3", width=8)), clip()
    whole, tile = measured(vae, "encode", source), measured(vae, "encode", source, TILE)
    budget = tile.base + int(1.1 * tile.peak)
    card = virtual(budget)
    job = Job(vae, "encode", card, Request(budget, estimate=False))
    for _ in range(20):
        outcome = run_checked(job, source, whole.value)
        first, *_, last = outcome.attempts
        assert (first.rung, first.outcome, last.outcome) == ("whole", "oom", "ok")
        assert last.tile is not None
        assert first.peak_bytes is not None
        assert first.peak_bytes > 0.7 * budget
        expected = weights_and_input(vae, source)
        assert last.held_before_bytes == last.baseline_bytes == expected == outcome.baseline_bytes
    assert_usable(card)


@pytest.mark.parametrize("allocator", ["native", "async", "expandable"])
def test_o01_also_where_the_allocator_takes_memory_in_steps(allocator: str) -> None:
    """The budget bounds what is reserved, not only what is allocated."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 64, 64)
    whole = measured(vae, "decode", source)
    budget = 44 * MIB
    card = virtual(f"64MiB,allocator={allocator}")
    job = Job(vae, "decode", card, Request(budget, estimate=False))
    outcome = run_checked(job, source, whole.value)
    assert outcome.attempts[0].outcome == "oom"
    assert outcome.attempt.exact
    assert_usable(card)


# O03


def without_hook(vae: Vae) -> Vae:
    """A third party's VAE: it keeps its features on itself, and nobody knows how to reset it."""
    return Vae(vae.module, vae.traits, vae.encode, vae.decode, random=True)


def allocations_of(vae: Vae, source: torch.Tensor) -> tuple[int, int]:
    """Allocations before the first call of a whole encode, and during it."""
    card = virtual("1GiB")
    Job(vae, "encode", card, Request(2**30, wish=parse_tile("off"), estimate=False)).run(source)
    before = len(list(vae.module.parameters())) + 1
    return before, card.allocations - before


@pytest.mark.parametrize("hook", [True, False], ids=["with a reset hook", "without"])
@pytest.mark.usefixtures("no_collector")
def test_o03_an_oom_at_60_percent_that_ends_in_tiles_leaves_the_baseline(hook: bool) -> None:
    """The cache that the VAE keeps on itself goes, and the report says which."""
    vae, source = toy_vae("V3"), clip()
    vae = vae if hook else without_hook(vae)
    whole = measured(vae, "encode", source)
    before, during = allocations_of(vae, source)
    card = virtual("64MiB")
    job = Job(vae, "encode", card, Request(64 * MIB, estimate=False))
    with oom_after(card, before + during * 6 // 10):
        outcome = run_checked(job, source, whole.value)
    failed, *_, last = outcome.attempts
    assert (failed.rung, failed.outcome) == ("whole", "oom")
    assert last.held_before_bytes == weights_and_input(vae, source)
    assert failed.reason is not None
    assert ("_Clip's own cache" if hook else "_Clip._feat (") in failed.reason
    assert vae.module._feat == [None] * 5
    assert_usable(card)


@pytest.mark.parametrize("hook", [True, False], ids=["with a reset hook", "without"])
@pytest.mark.usefixtures("no_collector")
def test_o03_a_total_failure_leaves_the_baseline(hook: bool) -> None:
    """No rung holds: the card is empty already in the caller's handler, and says why."""
    vae, source = untold(toy_vae("V3")), clip()
    vae = vae if hook else without_hook(vae)
    card = virtual("64MiB")
    job = Job(vae, "encode", card, Request(64 * MIB, estimate=False))

    def fail_late(operator: str, _: int) -> None:
        if "convolution" in operator and vae.module._feat[4] is not None:
            raise torch.OutOfMemoryError("full in the second step")

    with faults(card, on_allocate=fail_late), pytest.raises(MemoryShortage) as caught:
        job.run(source)
    assert_back(card)
    assert vae.module._feat == [None] * 5
    assert len(caught.value.attempts) > 2
    for attempt in caught.value.attempts:
        assert ("_Clip's own cache" if hook else "_Clip._feat (5 tensors") in attempt.reason
        assert attempt.held_before_bytes == attempt.baseline_bytes
    assert_usable(card)


def test_o03_an_error_of_the_model_itself_leaves_the_baseline() -> None:
    """Not out of memory: it passes through, and nothing is kept, however long it is handled."""
    vae = without_hook(toy_vae("V3"))

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError(f"NaN in {tuple(x.shape)}")

    forward, vae.module.to_latent.forward = vae.module.to_latent.forward, fail
    card = virtual("64MiB")
    with pytest.raises(ArithmeticError) as stored:
        Job(vae, "encode", card, Request(64 * MIB)).run(clip())
    assert stored.value.__traceback__ is not None
    assert_back(card)
    assert vae.module._feat == [None] * 5
    vae.module.to_latent.forward = forward
    run_checked(Job(vae, "encode", card, Request(64 * MIB)), clip())


# O04, O05


class SelfTiling(nn.Module):
    """Tiles itself, it says, so a call needs 12 MB whatever it is given."""

    def __init__(self, inner: Vae) -> None:
        super().__init__()
        self.inner = inner.module

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        scratch = x.new_zeros(12 * MIB // 4)
        result: torch.Tensor = self.inner.encode(x)
        return result + scratch[0]

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        scratch = z.new_zeros(12 * MIB // 4)
        result: torch.Tensor = self.inner.decode(z)
        return result + scratch[0]


@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
def test_o04_another_model_is_freed_before_the_same_call_is_made_again(estimate: bool) -> None:
    """8 MB are free and 12 needed: no tile helps; freeing the idle model does."""
    inner = toy_vae("V2")
    vae = wrap_toy(SelfTiling(inner), replace(inner.traits, name="SelfTiling"))
    source = torch.rand(1, 4, 8, 8)
    reference = measured(vae, "decode", source)
    card = virtual("64MiB")
    idle = Idle(card.device, 28 * MIB, 28 * MIB)
    request = Request(64 * MIB, estimate=estimate, evict=idle.evict)
    outcome = Job(vae, "decode", card, request).run(source)
    assert torch.equal(outcome.value, reference.value)
    assert [a.rung for a in outcome.attempts] == ["whole", "evict idle models"]
    assert outcome.attempts[0].outcome == ("skipped" if estimate else "oom")
    assert outcome.peak_reserved_bytes is not None
    assert outcome.peak_reserved_bytes <= 64 * MIB
    assert len(idle.asked) == 1
    if estimate:
        assert idle.asked[0] is not None
        assert 4 * MIB <= idle.asked[0] < 8 * MIB
        assert len(idle.blocks) == 1  # no more was evicted than what was missing
    idle.blocks.clear()
    assert_back(card)
    assert_usable(card)


def test_o04_with_nothing_to_free_the_tries_are_bounded_and_never_the_same() -> None:
    """Whole, tiles, smaller tiles, and an end."""
    inner = toy_vae("V2")
    vae = wrap_toy(SelfTiling(inner), replace(inner.traits, name="SelfTiling"))
    card = virtual("64MiB")
    blocker = torch.zeros(56 * MIB // 4, device=card.device)
    request = Request(64 * MIB, estimate=False, evict=lambda _: 0)
    with pytest.raises(MemoryShortage) as caught:
        Job(vae, "decode", card, request).run(torch.rand(1, 4, 32, 32))
    tries = [(a.rung, a.tile) for a in caught.value.attempts if tried(a)]
    assert len(set(tries)) == len(tries) <= 8
    assert card.read().allocated == blocker.nbytes


@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
def test_o05_evicting_an_idle_model_beats_tiles(estimate: bool) -> None:
    """64 MB card, 40 MB idle, a decode of about 50 MB: untiled, bit for bit, and in order."""
    vae, source = toy_vae("V2N"), torch.rand(1, 4, 64, 60)
    reference = measured(vae, "decode", source)
    assert 45 * MIB < reference.peak < 55 * MIB
    card = virtual("64MiB")
    idle = Idle(card.device, *[5 * MIB] * 8)
    request = Request(64 * MIB, estimate=estimate, evict=idle.evict)
    outcome = Job(vae, "decode", card, request).run(source)
    assert torch.equal(outcome.value, reference.value)
    assert outcome.exact
    assert outcome.attempt.tile is None
    assert [a.rung for a in outcome.attempts] == ["whole", "evict idle models"]
    assert outcome.attempts[1].baseline_bytes == outcome.attempts[1].held_before_bytes
    idle.blocks.clear()
    assert_back(card)


def test_o05_a_need_that_was_foreseen_too_small_still_evicts_before_tiles() -> None:
    """Hidden workspace: what should have fitted did not, so all that is idle goes."""
    vae, source = toy_vae("V2N"), torch.rand(1, 4, 32, 24)
    reference = measured(vae, "decode", source)
    card = virtual("64MiB")
    idle = Idle(card.device, 20 * MIB, 20 * MIB)
    request = Request(64 * MIB, evict=idle.evict)
    with faults(card, workspace=lambda op, size: 12 * size if "convolution" in op else 0):
        outcome = Job(vae, "decode", card, request).run(source)
    assert [a.rung for a in outcome.attempts] == ["whole", "evict idle models"]
    assert outcome.attempts[0].outcome == "oom"
    assert idle.asked == [None]
    assert torch.equal(outcome.value, reference.value)


# O06


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("form", OOM_FORMS)
@pytest.mark.parametrize("name", ["V2", "V3"])
def test_o06_every_form_of_oom_is_retried(name: str, form: Form, late: bool) -> None:
    """Another type, another text, or later at a sync: blamed on the stage it belongs to."""
    vae = toy_vae(name)
    source = torch.rand(1, 4, 12, 12) if name == "V2" else torch.rand(1, 16, 2, 12, 12)
    reference = measured(vae, "decode", source)
    card = virtual("64MiB")
    start = len(list(vae.module.parameters())) + 1
    with oom_after(card, start + 5, form=form, late=late):
        outcome = run_checked(
            Job(vae, "decode", card, Request(64 * MIB, estimate=False)), source, reference.value
        )
    assert [a.outcome for a in outcome.attempts] == ["oom", "ok"]
    assert {a.stage for a in outcome.attempts} == {"decode"}
    assert_usable(card)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_o06_an_illegal_access_is_not_taken_as_oom(late: bool) -> None:
    """It is the caller's error, once, and the card is back."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 12, 12)
    card = virtual("64MiB")
    start = len(list(vae.module.parameters())) + 1
    with (
        oom_after(card, start + 5, form=Form.ILLEGAL_ACCESS, late=late),
        pytest.raises(RuntimeError, match="illegal memory access"),
    ):
        Job(vae, "decode", card, Request(64 * MIB)).run(source)
    assert_back(card)
    assert_usable(card)


# O08


def test_o08_the_oom_of_a_load_is_reported_though_the_release_hook_raises() -> None:
    """The OOM is the error, the hook's is a note; locks are balanced, and the next load works."""
    vae = toy_vae("V2")
    lock = threading.Lock()
    broken = True

    def reset() -> None:
        with lock:
            if broken:
                raise AssertionError("unlocked twice")

    vae = Vae(vae.module, vae.traits, vae.encode, vae.decode, reset=reset, random=True)
    source = torch.rand(1, 3, 32, 32)
    card = virtual("64MiB")
    job = Job(vae, "encode", card, Request(64 * MIB, estimate=False))
    with oom_after(card, 3), pytest.raises(MemoryShortage, match="memory to load V2") as caught:
        job.run(source)
    assert [(a.stage, a.outcome) for a in caught.value.attempts] == [("load", "oom")]
    assert any("AssertionError: unlocked twice" in note for note in caught.value.__notes__)
    assert not lock.locked()
    assert_back(card)
    outcome = run_checked(job, source)  # and it loads though the hook still fails
    assert any("unlocked twice" in note for note in outcome.notes)
    broken = False
    assert run_checked(job, source, outcome.value, tolerance=0).notes == ()


class Locked(nn.Module):
    """A module whose own clean-up unlocks twice when a call fails."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.lock = threading.Lock()

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        self.lock.acquire()
        try:
            result: torch.Tensor = self.inner.encode(x)
        except BaseException:
            self.lock.release()
            self.lock.release()
            raise
        self.lock.release()
        return result

    decode = encode


def test_o08_an_error_of_the_modules_clean_up_does_not_stop_the_fallback() -> None:
    """The assertion took the place of the OOM; it is retried as one, and noted."""
    inner, source = toy_vae("V2"), torch.rand(1, 3, 96, 96)
    vae = wrap_toy(Locked(inner.module), inner.traits)
    reference = measured(vae, "encode", source)
    card = virtual("64MiB")
    start = len(list(vae.module.parameters())) + 1
    with oom_after(card, start + 5):
        outcome = run_checked(
            Job(vae, "encode", card, Request(64 * MIB, estimate=False)), source, reference.value
        )
    assert "OutOfMemoryError" in (outcome.attempts[0].reason or "")
    assert any("unlocked lock" in note for note in outcome.notes)
    assert not vae.module.lock.locked()


# O09


@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
@pytest.mark.parametrize("name", ["V2", "V3"])
def test_o09_a_card_too_small_for_a_tile_is_one_error_then_a_small_input_works(
    name: str, estimate: bool
) -> None:
    """Bounded tries, the needed and the available bytes, and what to change."""
    vae = toy_vae(name)
    if name == "V2":
        large, small = torch.rand(1, 3, 256, 256), torch.rand(1, 3, 16, 16)
    else:
        large, small = torch.rand(1, 3, 5, 128, 128), torch.rand(1, 3, 1, 16, 16)
    assert measured(vae, "encode", large, TILE).peak > 2 * measured(vae, "encode", small).peak
    budget = weights_and_input(vae, small) + int(1.05 * measured(vae, "encode", small).peak)
    card = virtual(budget)
    job = Job(vae, "encode", card, Request(budget, estimate=estimate))
    with pytest.raises(MemoryShortage) as caught:
        job.run(large)
    assert_back(card)
    attempts = caught.value.attempts
    tries = [(a.rung, a.tile) for a in attempts if tried(a)]
    assert len(set(tries)) == len(tries) <= 8
    what, needs, tried_line, advice = str(caught.value).splitlines()
    assert what.startswith("Not enough memory to encode")
    assert "Needs " in needs
    assert " can be used on virtual:" in needs
    assert tried_line.startswith("Tried: whole (")
    assert "--vram" in advice
    assert "a smaller or shorter input" in advice
    assert "--tile" not in advice  # the smallest there is was tried
    run_checked(job, small, measured(vae, "encode", small).value)


def test_o09_the_bytes_that_the_error_asks_for_are_enough() -> None:
    """A card of the size in the sentence does the job."""
    vae, source = toy_vae("V2"), torch.rand(1, 3, 256, 256)
    budget = weights_and_input(vae, torch.rand(1, 3, 64, 64)) + MIB // 2
    with pytest.raises(MemoryShortage) as caught:
        Job(vae, "encode", virtual(budget), Request(budget)).run(source)
    needs = str(caught.value).splitlines()[1].split()
    assert needs[0] == "Needs"
    enough = int((float(needs[1]) + 0.05) * {"KiB": 2**10, "MiB": MIB}[needs[2]])
    run_checked(Job(vae, "encode", virtual(enough), Request(enough)), source)


# O15


def test_o15_gradients_are_off_whatever_the_user_left_on() -> None:
    """9 tiles with parameters that require gradients: the peak of a run without, no grad_fn."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 48, 48)
    wish = parse_tile("176", "48")
    expected = measured(vae, "decode", source, wish)
    for parameter in vae.module.parameters():
        parameter.requires_grad_(True)
    calls: list[int] = []
    card = virtual("64MiB")
    with torch.enable_grad():
        outcome = run_checked(
            Job(
                vae,
                "decode",
                card,
                Request(64 * MIB, wish=wish, estimate=False),
                progress=lambda _, done, total: calls.append(total),
            ),
            source,
            expected.value,
            tolerance=0,
        )
        leaf = run_checked(
            Job(vae, "decode", card, Request(64 * MIB, wish=wish, estimate=False)),
            source.clone().requires_grad_(True),
        )
    assert calls == [9] * 9
    assert outcome.peak_bytes == expected.base + expected.peak
    assert not outcome.value.requires_grad
    assert not leaf.value.requires_grad
    assert all(parameter.requires_grad for parameter in vae.module.parameters())
    assert_usable(card)


# Passing is monotone


JOBS: dict[str, tuple[Direction, Callable[[Vae], torch.Tensor]]] = {
    "V2": ("decode", lambda _: torch.rand(1, 4, 24, 32)),
    "V3": ("decode", lambda _: torch.rand(1, 16, 2, 16, 16)),
    # An input larger than a tile's need: where it lies decides what fits.
    "V3 long": ("encode", lambda vae: vae.decode(torch.rand(1, 16, 9, 10, 10))),
}


@pytest.mark.slow
@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
@pytest.mark.parametrize("name", JOBS)
def test_what_passes_at_a_budget_passes_at_every_larger_one(name: str, estimate: bool) -> None:
    """A sweep from too small to whole: no gap, the budget kept, the same answer, fewer tiles."""
    direction, make = JOBS[name]
    vae = toy_vae(name.split()[0], width=16 if "long" in name else 8)
    source = make(vae)
    whole = measured(vae, direction, source)
    weights = weights_and_input(vae, source) - source.nbytes
    low, high = weights // 2, whole.base + int(1.1 * whole.peak)
    passed: list[bool] = []
    sizes: list[int] = []
    for budget in range(low, high, (high - low) // 12):
        card = virtual(budget)
        try:
            outcome = run_checked(
                Job(vae, direction, card, Request(budget, estimate=estimate)), source, whole.value
            )
        except MemoryShortage:
            passed.append(False)
            assert_back(card)
        else:
            passed.append(True)
            tile = outcome.attempt.tile or (10**6, 10**6)
            sizes.append(tile[0] * tile[1])
    assert passed == sorted(passed)
    assert not passed[0]
    assert passed[-1]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 10**12


def test_an_input_that_leaves_no_room_for_a_tile_goes_back_to_the_host() -> None:
    """Beside the input no tile fits; without it one does, and the report says so."""
    vae = untold(toy_vae("V3", width=16))
    source = vae.decode(torch.rand(1, 16, 9, 10, 10))
    tile = measured(vae, "encode", source, TILE)
    budget = tile.base + tile.peak - MIB // 4
    for estimate in (True, False):
        outcome = run_checked(
            Job(vae, "encode", virtual(budget), Request(budget, estimate=estimate)),
            source,
            measured(vae, "encode", source).value,
        )
        assert outcome.baseline_bytes == weights_and_input(vae, source)
        assert outcome.attempt.baseline_bytes == outcome.baseline_bytes - source.nbytes
        assert "input (2.4 MiB) moved back to the host" in outcome.adjusted


def test_an_input_that_leaves_no_room_for_strips_goes_back_to_the_host() -> None:
    """Of a wide network: the least card that strips need has no room for the input beside them."""
    vae = toy_vae("V2", width=64)
    source = torch.rand(1, 3, 96, 96) * 2 - 1
    whole = measured(vae, "encode", source)
    base = weights_and_input(vae, source)
    request = Request(0, wish=parse_tile("off"))
    for budget in range(base + source.nbytes, whole.base + whole.peak, source.nbytes // 4):
        job = Job(vae, "encode", virtual(budget), replace(request, budget=budget))
        try:
            outcome = run_checked(job, source, whole.value)
        except MemoryShortage:
            continue
        break
    assert outcome.attempt.rung == "strips, input on the host"
    assert outcome.attempt.exact
    assert outcome.attempt.baseline_bytes == base - source.nbytes
    assert "input (108.0 KiB) moved back to the host" in outcome.adjusted


@pytest.mark.slow
@pytest.mark.parametrize("allocator", ["native", "async,grain=2MiB", "expandable"])
@pytest.mark.parametrize("name", JOBS)
def test_what_passes_also_passes_on_more_where_memory_has_steps(name: str, allocator: str) -> None:
    """The replay tells what holds: of whole runs and tiles no try fails, none is larger on less,
    and the budget is kept."""
    direction, make = JOBS[name]
    vae = toy_vae(name.split()[0], width=16)
    source = make(vae)
    whole = measured(vae, direction, source)
    low, high = weights_and_input(vae, source) // 2, 2 * (whole.base + whole.peak) + 32 * MIB
    passed: list[bool] = []
    sizes: list[int] = []
    for budget in range(low, high, (high - low) // 10):
        card = virtual(f"512MiB,allocator={allocator}")
        try:
            outcome = run_checked(Job(vae, direction, card, Request(budget)), source, whole.value)
        except MemoryShortage:
            passed.append(False)
            assert_back(card)
        else:
            passed.append(True)
            tile = outcome.attempt.tile or (10**6, 10**6)
            sizes.append(tile[0] * tile[1])
            coded = [a for a in outcome.attempts if a.stage == direction]
            failed = {a.rung for a in coded if a.outcome == "oom"}
            assert all("strips" in rung for rung in failed)
    assert passed == sorted(passed)
    assert not passed[0]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 10**12


@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
@pytest.mark.parametrize("allocator", ["native", "async", "expandable"])
def test_slack_never_breaks_the_budget_nor_the_order(allocator: str, estimate: bool) -> None:
    """Reserved stays at or below the budget, and passing stays monotone, where memory has steps."""
    vae, source = toy_vae("V2", width=8), torch.rand(1, 4, 48, 48)
    whole = measured(vae, "decode", source)
    passed: list[bool] = []
    for budget in (1 * MIB, 24 * MIB, 44 * MIB, 64 * MIB, 128 * MIB):
        card = virtual(f"512MiB,allocator={allocator}")
        job = Job(vae, "decode", card, Request(budget, estimate=estimate))
        try:
            run_checked(job, source, whole.value)
            passed.append(True)
        except MemoryShortage:
            passed.append(False)
        assert_back(card)
    assert passed == sorted(passed)
    assert not passed[0]
    assert passed[-1]
