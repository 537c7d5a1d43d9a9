"""One encode or decode on one card: its figures, its ways, its repeats."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.cases.common import (
    Measured,
    assert_back,
    measured,
    run_checked,
    untold,
    virtual,
    weights_and_input,
)
from tightfit.card import open_card, open_cards
from tightfit.errors import Cancelled, MemoryShortage
from tightfit.plan.tilesize import parse_tile
from tightfit.run.cancel import Cancel
from tightfit.run.estimate import Estimator
from tightfit.run.job import Job, Request
from tightfit.run.ladder import Lessons
from tightfit.run.preflight import preflight
from tightfit.run.vae import Direction, Traits, Vae
from tightfit.testing import faults, oom_after, other_program, toy_vae, wrap_toy
from tightfit.units import GIB, MIB
from tightfit.weigh import weight_bytes
from tightfit.weigh.calibration import Calibrations

ROOM = 256 * MIB
SOURCES = {
    "V2": (2, 4, 12, 16),
    "V2N": (1, 4, 12, 16),
    "V2P": (1, 4, 8, 10),
    "V3": (1, 16, 2, 10, 12),
    "VA": (1, 64, 30),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_whole_run_is_the_model_itself(name: str) -> None:
    """To rounding, in both directions, on a card and on the host."""
    vae, latent = toy_vae(name), torch.rand(SOURCES[name])
    samples = vae.decode(latent)
    for direction, source, expected in (
        ("decode", latent, samples),
        ("encode", samples, vae.encode(samples)),
    ):
        job = Job(vae, direction, virtual(ROOM), Request(ROOM))
        run_checked(job, source, expected)
        host = Job(vae, direction, open_card("cpu"), Request(ROOM)).run(source)
        torch.testing.assert_close(host.value, expected, rtol=0, atol=1e-6)
        assert host.before_bytes is host.peak_bytes is host.after_bytes is None


def test_the_ledger_adds_up_to_the_peak() -> None:
    """Weights, input, activations and slack are what was reserved at the peak, each measured."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 32, 32)
    for allocator in ("exact", "native", "async", "expandable"):
        job = Job(vae, "decode", virtual(f"256MiB,allocator={allocator}"), Request(ROOM))
        outcome = run_checked(job, source)
        lines = outcome.ledger
        total = sum(
            lines[name][0] or 0
            for name in ("weights_resident", "ring", "scratch", "input", "activations", "slack")
        )
        assert total == outcome.attempt.peak_reserved_bytes
        assert lines["weights_resident"][0] == sum(p.nbytes for p in vae.module.parameters())
        assert (lines["slack"][0] == 0) == (allocator == "exact")


def test_what_others_hold_context_and_reserve_are_in_the_ledger() -> None:
    """Each on its own line."""
    card = virtual("64MiB,context=3MiB")
    with other_program(card, 5 * MIB):
        request = Request(64 * MIB, reserve=2 * MIB)
        outcome = run_checked(Job(toy_vae("V2"), "decode", card, request), torch.rand(1, 4, 4, 4))
    assert outcome.ledger["held_by_others"] == (5 * MIB, "measured")
    assert outcome.ledger["context"] == (3 * MIB, "measured")
    assert outcome.ledger["reserve"][0] == 2 * MIB


def test_a_reserve_is_kept_free_by_planning() -> None:
    """Though the card would give it: the peak leaves it to others."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 24, 24)
    whole = measured(vae, "decode", source)
    total = whole.base + 2 * whole.peak
    card = virtual(total)
    outcome = run_checked(
        Job(vae, "decode", card, Request(total, reserve=int(1.5 * whole.peak))), source, whole.value
    )
    assert "strips" in outcome.attempt.rung
    assert outcome.peak_reserved_bytes is not None
    assert outcome.peak_reserved_bytes <= total - int(1.5 * whole.peak)


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_the_estimate_is_near_the_measured_peak_and_not_below(
    name: str, direction: Direction
) -> None:
    """Within 10 % on a card without slack; its line goes through two sizes."""
    vae, source = toy_vae(name), torch.rand(1, *SOURCES[name][1:])
    source = source if direction == "decode" else vae.decode(source)
    outcome = run_checked(Job(vae, direction, virtual(ROOM), Request(ROOM)), source)
    estimate = outcome.estimate
    assert estimate.source == "dry run"
    assert estimate.peak_bytes is not None
    assert outcome.peak_bytes is not None
    assert outcome.peak_bytes <= estimate.peak_bytes <= 1.1 * outcome.peak_bytes + 2**17
    assert estimate.fixed_bytes is not None
    assert estimate.slope is not None
    assert estimate.fixed_bytes >= 0
    assert estimate.slope > 0


def test_an_estimate_that_was_not_asked_for_is_unknown() -> None:
    """None, never 0."""
    outcome = Job(toy_vae("V2"), "decode", virtual(ROOM), Request(ROOM, estimate=False)).run(
        torch.rand(1, 4, 4, 4)
    )
    assert outcome.estimate.peak_bytes is outcome.estimate.slope is None
    assert outcome.estimate.source == "not asked"


@pytest.mark.parametrize("allocator", ["native", "async", "expandable"])
def test_an_estimate_is_of_tensors_not_of_what_holds_them(allocator: str) -> None:
    """It stands beside the measured peak in the report: the fragments are no part of either."""
    card = virtual(f"512MiB,allocator={allocator}")
    vae, source = toy_vae("V2"), torch.rand(1, 4, 40, 40)
    outcome = run_checked(Job(vae, "decode", card, Request(512 * MIB)), source)
    assert outcome.estimate.peak_bytes == pytest.approx(outcome.peak_bytes, rel=0.02)


def test_where_nobody_plans_no_dry_run_is_made() -> None:
    """It takes a second for a large model, and its figures were not asked for."""
    vae = toy_vae("V2")

    def decode(z: torch.Tensor) -> torch.Tensor:
        assert z.device.type != "meta"
        return vae.decode(z)

    known = Calibrations()
    job = Job(
        replace(vae, decode=decode),
        "decode",
        virtual(ROOM),
        Request(ROOM, estimate=False),
        calibrations=known,
    )
    job.run(torch.rand(1, 4, 8, 8))
    assert known._entries == {}


def test_two_jobs_at_once_forget_nothing_of_each_other() -> None:
    """Both began with the same knowledge; each adds what it measured."""
    known, both = Calibrations(), threading.Barrier(2)

    def job(side: int) -> None:
        vae = toy_vae("V2")

        def decode(z: torch.Tensor) -> torch.Tensor:
            if z.device.type != "meta":
                both.wait(timeout=60)
            return vae.decode(z)

        job = Job(replace(vae, decode=decode), "decode", virtual(ROOM), Request(ROOM))
        job.calibrations = known
        job.run(torch.rand(1, 4, side, side))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(job, (8, 16)))
    third = Job(toy_vae("V2"), "decode", virtual(ROOM), Request(ROOM), calibrations=known)
    outcome = third.run(torch.rand(1, 4, 8, 8))
    assert outcome.estimate.source == "dry run, calibrated on 2 sizes"


def test_what_a_narrow_model_taught_is_not_believed_of_a_wide_one() -> None:
    """Both are of one class; only what they weigh tells them apart."""
    known, source = Calibrations(), torch.rand(1, 4, 12, 12)
    card = virtual(ROOM)
    with faults(card, workspace=lambda op, size: 12 * size if "convolution" in op else 0):
        Job(toy_vae("V2", width=4), "decode", card, Request(ROOM), calibrations=known).run(source)
    wide = Job(toy_vae("V2", width=32), "decode", card, Request(ROOM), calibrations=known)
    assert wide.run(source).estimate.source == "dry run"


class Picky(nn.Module):
    """Its code depends on values, so no dry run can tell what it needs; it may also be rude."""

    def __init__(self, inner: nn.Module, error: type[Exception] | None = None) -> None:
        super().__init__()
        self.inner = inner
        self.error = error

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        if self.error is not None and z.device.type == "meta":
            raise self.error("no values")
        result: torch.Tensor = self.inner.decode(z)
        return result if bool((result > 1e9).any()) else result * 1

    encode = decode


@pytest.mark.parametrize("error", [None, KeyError, ZeroDivisionError, AssertionError])
def test_a_need_that_cannot_be_told_is_tried(error: type[Exception] | None) -> None:
    """Whatever a dry run raises is no reason to stop."""
    inner, source = toy_vae("V2"), torch.rand(1, 4, 24, 24)
    vae = wrap_toy(Picky(inner.module, error), inner.traits)
    whole = measured(vae, "decode", source)
    budget = whole.base + whole.peak // 2
    outcome = run_checked(Job(vae, "decode", virtual(budget), Request(budget)), source, whole.value)
    assert outcome.attempts[0].outcome == "oom"
    assert outcome.estimate.peak_bytes is None


class Tabled(nn.Module):
    """Moves a table of its own to wherever it is called, and keeps it there."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.table = torch.full((4, 1, 1), 2.0)
        self.steps: list[torch.Tensor] = []

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        self.table = self.table.to(z.device)
        self.steps.append(z.mean())
        for step in self.steps:
            z = z + 0 * step
        result: torch.Tensor = self.inner.decode(z * self.table)
        return result

    encode = decode


@pytest.mark.parametrize("budget", ["whole", "tiles"])
def test_a_module_that_keeps_things_works_again_and_again(budget: str) -> None:
    """Its table comes back to the host, its list is as short as it was; job after job."""
    inner, source = toy_vae("V2"), torch.rand(1, 4, 24, 24)
    vae = wrap_toy(Tabled(inner.module), inner.traits)
    whole = measured(vae, "decode", source)
    size = whole.base + (2 * whole.peak if budget == "whole" else whole.peak // 2)
    for estimate in (True, False, True):
        run_checked(
            Job(vae, "decode", virtual(size), Request(size, estimate=estimate)),
            source,
            whole.value,
        )
        assert vae.module.table.device.type == "cpu"
        assert vae.module.steps == []


def test_a_model_that_makes_cycles_leaves_nothing() -> None:
    """What only a collection frees is collected before the job ends."""
    inner = toy_vae("V2")

    class Cyclic(nn.Module):
        def decode(self, z: torch.Tensor) -> torch.Tensor:
            cycle: list[object] = [z * 2]
            cycle.append(cycle)
            result: torch.Tensor = inner.decode(z)
            return result

        encode = decode

    vae = wrap_toy(Cyclic(), inner.traits)
    vae.module.inner = inner.module
    run_checked(Job(vae, "decode", virtual(ROOM), Request(ROOM)), torch.rand(1, 4, 4, 4))


def test_a_seed_draws_from_the_posterior_and_is_repeated() -> None:
    """Only in encode, only where there is one."""
    toy = toy_vae("V2")

    def moments(x: torch.Tensor) -> torch.Tensor:
        mean = toy.encode(x)
        return torch.cat([mean, torch.zeros_like(mean)], dim=1)

    vae = replace(toy, moments=moments)
    source = torch.rand(1, 3, 32, 32)

    def value(seed: int | None) -> torch.Tensor:
        return Job(vae, "encode", virtual(ROOM), Request(ROOM, seed=seed)).run(source).value

    assert torch.equal(value(3), value(3))
    assert not torch.equal(value(3), value(4))
    mode = measured(toy, "encode", source).value
    assert torch.equal(value(None), mode)
    noise = torch.randn(mode.shape, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(value(3), mode + noise)


def test_a_budget_below_the_card_is_kept() -> None:
    """The card is large, the budget is what counts, and the cap is gone afterwards."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 24, 24)
    whole = measured(vae, "decode", source)
    card = virtual("1GiB")
    budget = whole.base + whole.peak // 2
    for estimate in (True, False):
        outcome = run_checked(
            Job(vae, "decode", card, Request(budget, estimate=estimate)), source, whole.value
        )
        assert "strips" in outcome.attempt.rung
    assert torch.zeros(MIB, device=card.device).nbytes == 4 * MIB


def test_a_budget_below_the_weights_is_refused_in_the_load() -> None:
    """Nothing is left on the card, and the masters are untouched."""
    vae = toy_vae("V2")
    masters = [p.data_ptr() for p in vae.module.parameters()]
    for estimate in (True, False):
        card = virtual("64MiB")
        request = Request(32 * 1024, estimate=estimate)
        with pytest.raises(MemoryShortage, match="Not enough memory to load V2"):
            Job(vae, "encode", card, request).run(torch.rand(1, 3, 16, 16))
        assert_back(card)
        assert [p.data_ptr() for p in vae.module.parameters()] == masters


def test_the_host_takes_over_only_where_it_is_allowed_to() -> None:
    """After everything else, also when not even the weights fit."""
    vae, source = toy_vae("V2"), torch.rand(2, 3, 64, 64)
    expected = vae.encode(source)
    for budget in (32 * 1024, 200 * 1024):
        card = virtual("64MiB")
        request = Request(budget, allow_cpu=True)
        outcome = run_checked(Job(vae, "encode", card, request), source, expected)
        assert outcome.attempt.rung == "cpu"
        with pytest.raises(MemoryShortage):
            Job(vae, "encode", card, replace(request, allow_cpu=False)).run(source)


def test_the_host_is_watched_and_stopped_as_a_card_is() -> None:
    """Each item is told, and the flag is obeyed before the next one."""
    vae, source, cancel = toy_vae("V2"), torch.rand(3, 3, 64, 64), Cancel()
    told: list[tuple[str, int, int]] = []

    def progress(rung: str, done: int, total: int) -> None:
        told.append((rung, done, total))
        if done == 2:
            cancel.set()

    request = Request(32 * 1024, allow_cpu=True)
    card = virtual("64MiB")
    with pytest.raises(Cancelled):
        Job(vae, "encode", card, request, cancel=cancel, progress=progress).run(source)
    assert told == [("cpu", 1, 3), ("cpu", 2, 3)]
    assert_back(card)


def test_a_rung_short_of_workspace_comes_before_the_host() -> None:
    """It may be slow, but the card can do it: nothing goes to the CPU that need not."""
    vae, source, lessons = untold(toy_vae("V2")), torch.rand(1, 4, 24, 24), Lessons()
    request = Request(32 * MIB, wish=parse_tile("off"), allow_cpu=True)
    card = virtual("32MiB")
    job = Job(vae, "decode", card, request, lessons=lessons)
    with faults(
        card,
        workspace=lambda op, size: 12 * size if "convolution" in op else 0,
        silent_workspace=True,
    ):
        assert job.run(source).attempt.refusals
        assert job.run(source).attempt.rung == "whole"


def test_a_module_that_lies_on_the_card_already_is_not_counted_twice() -> None:
    """A user's own: a budget for one copy is enough, it stays there, and the host may help."""
    vae = toy_vae("V2", width=128)
    source = torch.rand(1, 3, 32, 32)
    expected, weights = vae.encode(source), weight_bytes(vae.module)
    card = virtual("64MiB")
    vae.module.to(card.device)
    held = card.read().allocated
    for budget, rung in ((weights * 3 // 2, "whole"), (weights + 2**16, "cpu")):
        request = Request(budget, allow_cpu=True)
        outcome = Job(vae, "encode", card, request).run(source)
        assert outcome.attempt.rung == rung
        torch.testing.assert_close(outcome.value, expected, rtol=0, atol=1e-5)
        assert outcome.before_bytes == outcome.after_bytes == held == card.read().allocated
        if rung == "whole":
            assert outcome.ledger["input"] == (source.nbytes, "measured")
    assert all(p.device == card.device for p in vae.module.parameters())


def test_the_estimate_is_of_as_many_pictures_as_run_at_once() -> None:
    """Predicted and measured peak agree for a batch too."""
    vae, source = toy_vae("V2"), torch.rand(6, 4, 24, 24)
    outcome = run_checked(Job(vae, "decode", virtual(ROOM), Request(ROOM)), source)
    assert outcome.estimate.peak_bytes == pytest.approx(outcome.peak_bytes, rel=0.05)


def test_a_job_short_of_workspace_begins_lower_next_time() -> None:
    """Refused workspaces are counted, noted, and learnt from."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 24, 24)
    whole = measured(vae, "decode", source)
    card = virtual("32MiB")
    lessons = Lessons()

    def workspace(operator: str, size: int) -> int:
        return 12 * size if "convolution" in operator else 0

    with faults(card, workspace=workspace, silent_workspace=True):
        first = Job(vae, "decode", card, Request(32 * MIB), lessons=lessons).run(source)
        second = Job(vae, "decode", card, Request(32 * MIB), lessons=lessons).run(source)
    assert first.attempt.rung == "whole"
    assert first.attempt.refusals > 0
    assert any("workspaces were refused" in note for note in first.notes)
    assert not torch.equal(first.value, whole.value)
    assert second.attempts[0].outcome == "skipped"
    assert "strips" in second.attempt.rung
    assert second.attempt.refusals < first.attempt.refusals


def test_delayed_frees_do_not_fail_a_job() -> None:
    """Frees that count late cost room, not the result."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 24, 24)
    whole = measured(vae, "decode", source)
    budget = whole.base + 2 * whole.peak
    card = virtual(budget)
    with faults(card, delayed_frees=True):
        job = Job(vae, "decode", card, Request(budget, estimate=False))
        outcome = job.run(source)
    torch.testing.assert_close(outcome.value, whole.value, rtol=0, atol=1e-5)
    assert outcome.after_bytes == 0
    card.sync()
    assert_back(card)


def test_every_single_allocation_may_fail_once() -> None:
    """Wherever it strikes, the job ends well or with one error, and the card is back."""
    vae, source = toy_vae("V3", width=8), torch.rand(1, 16, 2, 9, 9)
    whole = measured(vae, "decode", source)
    weights = len(list(vae.module.parameters()))
    counting = virtual(ROOM)
    Job(vae, "decode", counting, Request(ROOM, estimate=False)).run(source)
    for at in range(counting.allocations):
        card = virtual(ROOM)
        job = Job(vae, "decode", card, Request(ROOM, estimate=False))
        with oom_after(card, at):
            if at < weights:
                with pytest.raises(MemoryShortage, match="memory to load V3"):
                    job.run(source)
            else:
                run_checked(job, source, whole.value)
        assert_back(card)
        if at % 16 == 0:
            run_checked(job, source, whole.value)


@pytest.mark.parametrize("name", ["V2", "V3"])
def test_what_is_refused_before_the_weights_are_read_would_not_have_passed(name: str) -> None:
    """And what is let through passes: the two agree at every budget."""
    vae, source = toy_vae(name, width=8), torch.rand(1, *SOURCES[name][1:-2], 24, 24)
    whole = measured(vae, "decode", source)
    low, high = weights_and_input(vae, source), whole.base + whole.peak
    for budget in range(low, high, (high - low) // 8):
        request = Request(budget)
        try:
            preflight(vae, "decode", virtual(budget), request, tuple(source.shape))
            foreseen = True
        except MemoryShortage:
            foreseen = False
        try:
            Job(vae, "decode", virtual(budget), request).run(source)
            passed = True
        except MemoryShortage:
            passed = False
        assert foreseen == passed


def test_needs_are_asked_for_once_per_shape() -> None:
    """A dry run of a large model takes a moment."""
    calls: list[tuple[int, ...]] = []
    toy = toy_vae("V2")

    def decode(z: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(z.shape))
        return toy.decode(z)

    estimator = Estimator(replace(toy, decode=decode), "decode", 1.0)
    needs = [estimator.need((1, 4, 8, 8)), estimator.need((1, 4, 8, 8))]
    assert needs[0] == needs[1]
    assert calls == [(1, 4, 8, 8)]


def test_a_vae_of_numbers_alone_has_no_tiles() -> None:
    """At the floor already: one rung, one error."""
    vae, source = untold(toy_vae("V2")), torch.rand(1, 4, 8, 8)
    whole = measured(vae, "decode", source)
    budget = whole.base + whole.peak // 2
    with pytest.raises(MemoryShortage) as caught:
        Job(vae, "decode", virtual(budget), Request(budget, estimate=False)).run(source)
    assert [a.rung for a in caught.value.attempts] == ["whole"]


def test_tiles_that_are_forbidden_are_not_tried() -> None:
    """``--tile off`` fails where tiles would have helped, and its advice says so."""
    vae, source = untold(toy_vae("V2")), torch.rand(1, 4, 24, 24)
    whole = measured(vae, "decode", source)
    budget = whole.base + whole.peak // 2
    request = Request(budget, wish=parse_tile("off"))
    with pytest.raises(MemoryShortage, match="--tile") as caught:
        Job(vae, "decode", virtual(budget), request).run(source)
    assert [a.rung for a in caught.value.attempts] == ["whole"]


def test_strips_are_no_tiles_and_may_be_tried_where_those_are_forbidden() -> None:
    """They are exact: ``--tile off`` says nothing against them."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 24, 24)
    whole = measured(vae, "decode", source)
    budget = whole.base + whole.peak // 2
    request = Request(budget, wish=parse_tile("off"))
    outcome = run_checked(Job(vae, "decode", virtual(budget), request), source, whole.value)
    assert outcome.attempt.rung == "strips"
    assert outcome.exact
    assert outcome.ledger["host_activations"][0] is not None


def test_where_a_size_of_tiles_is_asked_for_there_are_no_strips() -> None:
    """The user's word comes before what would be exact."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 24, 24)
    request = Request(ROOM, wish=parse_tile("64"))
    outcome = run_checked(Job(vae, "decode", virtual(ROOM), request), source)
    assert outcome.attempt.tile == (64, 64)
    assert not any("strips" in attempt.rung for attempt in outcome.attempts)


def test_a_very_large_picture_reaches_the_floor() -> None:
    """Planned on paper alone: the last rung of a 16384² decode is 64 pixels, without a run."""
    vae = Vae(nn.Identity(), Traits("Big", 8), lambda x: x, lambda z: z)
    job = Job(vae, "decode", open_card("virtual:1GiB"), Request(GIB))
    rungs = list(job.rungs(torch.empty(1, 4, 2048, 2048, device="meta")).in_order(None))
    assert rungs[-1].tile == (64, 64)
    assert len(rungs) < 60


def test_d01_a_job_on_the_second_card_leaves_the_first_untouched() -> None:
    """Planning, the fallback and its clean-up included: a peak of 0 bytes."""
    vae, source = toy_vae("V3", width=8), torch.rand(1, 16, 2, 16, 16)
    whole = measured(vae, "decode", source)
    budget = whole.base + whole.peak // 2
    first, second = open_cards("virtual:2x64MiB")
    for estimate in (True, False):
        job = Job(vae, "decode", second, Request(budget, estimate=estimate))
        run_checked(job, source, whole.value)
    assert (first.read().peak_allocated, first.read().peak_reserved) == (0, 0)


def at_once(work: Callable[..., None], arguments: Iterable[tuple[object, ...]]) -> None:
    """Call `work` with each of these in a thread of its own; an error in one is raised here."""
    with ThreadPoolExecutor() as pool:
        for started in [pool.submit(work, *each) for each in arguments]:
            started.result()


def test_two_jobs_in_two_threads_on_two_cards_do_not_disturb_each_other() -> None:
    """Each has its own model, its own card and its own figures."""
    vaes = [toy_vae("V3", width=8, seed=seed) for seed in range(2)]
    source = torch.rand(1, 16, 2, 16, 16)
    wholes = [measured(vae, "decode", source) for vae in vaes]

    def work(vae: Vae, whole: Measured) -> None:
        budget = whole.base + whole.peak // 2
        job = Job(vae, "decode", virtual(budget), Request(budget, estimate=False))
        for _ in range(3):
            run_checked(job, source, whole.value)

    at_once(work, zip(vaes, wholes, strict=True))


def test_two_jobs_of_one_module_run_one_after_the_other() -> None:
    """It has one cache and one place for its weights: neither job may see the other's."""
    vae, source = toy_vae("V3", width=8), torch.rand(1, 16, 4, 12, 12)
    masters = [id(p) for p in vae.module.parameters()]
    whole = measured(vae, "decode", source)

    def work() -> None:
        job = Job(vae, "decode", virtual(ROOM), Request(ROOM, wish=parse_tile("64")))
        for _ in range(3):
            run_checked(job, source, whole.value)

    at_once(work, [()] * 3)
    assert [id(p) for p in vae.module.parameters()] == masters


def test_two_jobs_on_one_card_run_one_after_the_other() -> None:
    """Its cap and its peaks are one: each report is of its own job, and no cap stays behind."""
    source, card = torch.rand(1, 4, 24, 24), virtual(ROOM)
    vaes = [toy_vae("V2", seed=seed) for seed in range(3)]
    wholes = [measured(vae, "decode", source) for vae in vaes]

    def work(vae: Vae, whole: Measured) -> None:
        job = Job(vae, "decode", card, Request(64 * MIB, estimate=False))
        for _ in range(4):
            outcome = job.run(source)
            assert torch.equal(outcome.value, whole.value)
            assert outcome.peak_bytes == whole.base + whole.peak
            assert outcome.before_bytes == outcome.after_bytes == 0

    at_once(work, zip(vaes, wholes, strict=True))
    assert torch.zeros(80 * MIB // 4, device=card.device).nbytes == 80 * MIB


def test_on_the_host_a_budget_is_kept_by_planning() -> None:
    """Nothing can cap the process, so what is predicted to exceed it is not tried."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 24, 24)
    whole = measured(vae, "decode", source)
    budget = whole.base + whole.peak // 2
    outcome = Job(vae, "decode", open_card("cpu"), Request(budget)).run(source)
    assert outcome.attempts[0].outcome == "skipped"
    assert outcome.attempt.tile is not None
    torch.testing.assert_close(outcome.value, whole.value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("told", [True, False], ids=["to strips", "to tiles"])
@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
def test_another_program_that_takes_memory_in_the_middle_leads_on(
    estimate: bool, told: bool
) -> None:
    """What was planned no longer fits; the next rung is planned from what is left."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 24, 24)
    vae = vae if told else untold(vae)
    whole = measured(vae, "decode", source)
    budget = whole.base + int(1.2 * whole.peak)
    card = virtual(budget)
    taken = int(0.7 * whole.peak)

    def greedy(operator: str, _: int) -> None:
        if "convolution" in operator and card.read().held_by_others == 0:
            card.occupy(taken)

    request = Request(budget, estimate=estimate)
    with faults(card, on_allocate=greedy):
        outcome = run_checked(Job(vae, "decode", card, request), source, whole.value)
    assert (outcome.attempts[0].rung, outcome.attempts[0].outcome) == ("whole", "oom")
    assert (outcome.attempt.tile is None) == told
    assert ("strips" in outcome.attempt.rung) == told
    assert outcome.ledger["held_by_others"][0] == taken
    card.vacate(taken)
    assert run_checked(Job(vae, "decode", card, request), source).attempt.rung == "whole"


def test_a10_a_driver_that_spills_is_never_asked_to() -> None:
    """Requests above the card would succeed, ten times slower; our own ceiling comes first."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 24, 24)
    whole = measured(vae, "decode", source)
    budget = whole.base + whole.peak // 2
    card = virtual(budget)
    with faults(card, spill=True):
        for estimate in (True, False):
            job = Job(vae, "decode", card, Request(budget, estimate=estimate))
            assert "strips" in run_checked(job, source, whole.value).attempt.rung
    assert card.spilled == 0


@pytest.mark.parametrize("told", [True, False], ids=["to strips", "to tiles"])
@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
def test_d04_a_limit_on_single_allocations_leads_on(estimate: bool, told: bool) -> None:
    """There is enough memory in all, but no activation of the whole picture can be had."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 48, 48)
    vae = vae if told else untold(vae)
    whole = measured(vae, "decode", source)
    card = virtual("64MiB")
    with faults(card, max_allocation=3 * MIB):
        job = Job(vae, "decode", card, Request(64 * MIB, estimate=estimate))
        outcome = run_checked(job, source, whole.value)
    assert outcome.attempt.rung != "whole"
    assert outcome.attempt.exact
    assert "largest single allocation" in (outcome.attempts[0].reason or "")


def test_slack_is_room() -> None:
    """What the allocator keeps and nobody uses is given to the next tensors: no false refusal."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 8, 8)
    card = open_card("virtual:32MiB,allocator=async")  # takes all 32 MiB for the weights
    outcome = Job(vae, "decode", card, Request(32 * MIB)).run(source)
    assert [a.rung for a in outcome.attempts] == ["whole"]
    assert outcome.peak_reserved_bytes == 32 * MIB
