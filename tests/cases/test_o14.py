"""O14: a plan that knew nothing is corrected by the first tile that was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.cases.common import (
    Idle,
    assert_back,
    assert_usable,
    measured,
    run_checked,
    untold,
    virtual,
)
from tightfit.errors import Cancelled, MemoryShortage
from tightfit.run.cancel import Cancel
from tightfit.run.job import Job, Request
from tightfit.run.vae import Direction
from tightfit.testing import faults, toy_vae
from tightfit.units import MIB, format_bytes
from tightfit.watch import Recorder
from tightfit.weigh.calibration import Calibrations


@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_o14_the_first_tile_measured_corrects_a_plan_that_knew_nothing(
    direction: Direction,
) -> None:
    """Every 3-D convolution takes three times its input in secret; at most two tries run out."""
    vae = untold(toy_vae("V3"))
    source = torch.rand(1, *((3, 17, 96, 96) if direction == "encode" else (16, 5, 12, 12)))
    whole = measured(vae, direction, source)
    card = virtual(whole.base + int(whole.peak * 1.3))
    budget = card.read().total

    def hidden(operator: str, size: int) -> int:
        return 3 * size if "convolution" in operator else 0

    with faults(card, workspace=hidden):
        outcome = run_checked(Job(vae, direction, card, Request(budget)), source)
    failed = [attempt for attempt in outcome.attempts if attempt.outcome == "oom"]
    assert 1 <= len(failed) <= 2
    assert [attempt.stage for attempt in outcome.attempts].count("probe") == 1
    assert outcome.attempt.rung.startswith("tiles")
    assert outcome.estimate.peak_bytes is not None
    assert outcome.peak_bytes is not None
    assert outcome.estimate.peak_bytes < budget, "the report keeps the prediction as it was made"
    assert any("were predicted" in note for note in outcome.notes)


def test_o14_what_was_learnt_spares_the_next_job_the_failed_try() -> None:
    """The same job again goes straight to the tile that fitted."""
    vae, source = untold(toy_vae("V3")), torch.rand(1, 16, 5, 12, 12)
    whole = measured(vae, "decode", source)
    card = virtual(whole.base + int(whole.peak * 1.3))
    known = Calibrations()
    request = Request(card.read().total)
    with faults(card, workspace=lambda op, size: 3 * size if "convolution" in op else 0):
        first = Job(vae, "decode", card, request, calibrations=known).run(source)
        second = Job(vae, "decode", card, request, calibrations=known).run(source)
    assert "oom" in {attempt.outcome for attempt in first.attempts}
    assert "oom" not in {attempt.outcome for attempt in second.attempts}
    assert second.attempt.tile == first.attempt.tile


def _secret(operator: str, size: int) -> int:
    """Every convolution takes three times its input, which no dry run sees."""
    return 3 * size if "convolution" in operator else 0


@pytest.mark.parametrize("evict", [None, lambda _: 0], ids=["", "nothing to evict"])
def test_o14_a_batch_is_not_taken_apart_on_a_wrong_plan(
    evict: Callable[[int | None], int] | None,
) -> None:
    """Four pictures at once, then one, were wrongly predicted alike: one failed try shows both."""
    vae, source = untold(toy_vae("V2")), torch.rand(4, 4, 24, 24)
    whole = measured(vae, "decode", source)
    card = virtual(whole.base + int(whole.peak * 1.1))
    one = measured(vae, "decode", source[:1])
    with faults(card, workspace=_secret):
        request = Request(card.read().total, evict=evict)
        outcome = run_checked(Job(vae, "decode", card, request), source, whole.value)
    assert one.peak < whole.peak / 3
    assert [a.rung for a in outcome.attempts if a.outcome == "oom"] == ["whole"]
    assert [a.stage for a in outcome.attempts].count("probe") == 1


def test_o14_the_try_after_an_eviction_corrects_the_plan_too() -> None:
    """Skipped at first; freed for, tried, and wrong: the next tile is planned from a probe."""
    vae, source = untold(toy_vae("V3")), torch.rand(1, 16, 5, 12, 12)
    whole = measured(vae, "decode", source)
    card = virtual(whole.base + int(whole.peak * 1.3))
    idle = Idle(card.device, whole.peak // 2)
    with faults(card, workspace=_secret):
        request = Request(card.read().total, evict=idle.evict)
        outcome = Job(vae, "decode", card, request).run(source)
    first, second, *_ = outcome.attempts
    assert (first.rung, first.outcome) == ("whole", "skipped")
    assert (second.rung, second.outcome) == ("evict idle models", "oom")
    assert len([a for a in outcome.attempts if a.outcome == "oom"]) <= 2
    assert [a.stage for a in outcome.attempts].count("probe") == 1


def test_o14_the_note_is_about_this_jobs_probe() -> None:
    """Not about what an earlier job measured at another size."""
    vae, source = untold(toy_vae("V3")), torch.rand(1, 16, 5, 12, 12)
    known = Calibrations()
    roomy = virtual("1GiB")
    Job(vae, "decode", roomy, Request(2**30), calibrations=known).run(source[..., :9, :9])
    whole = measured(vae, "decode", source)
    budget = whole.base + int(whole.peak * 1.3)
    with faults(roomy, workspace=_secret):
        outcome = Job(vae, "decode", roomy, Request(budget), calibrations=known).run(source)
    (probe,) = (a for a in outcome.attempts if a.stage == "probe")
    (note,) = (note for note in outcome.notes if "were predicted" in note)
    assert probe.peak_bytes is not None
    assert probe.held_before_bytes is not None
    copy = 16 * 5 * 8 * 8 * 4
    taken = probe.peak_bytes - probe.held_before_bytes - copy
    assert f"{probe.rung} took {format_bytes(taken)} where" in note


class AfterTheProbe(Recorder):
    """Calls `then` when a probe held."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self.then = then

    def event(self, kind: str, **figures: Any) -> None:
        """As it comes."""
        super().event(kind, **figures)
        if kind == "done" and figures["stage"] == "probe":
            self.then()


def test_o14_a_job_that_fails_or_is_cancelled_keeps_what_its_probe_learnt() -> None:
    """The next one does not begin with the same failed try."""
    vae, source = untold(toy_vae("V3")), torch.rand(1, 16, 5, 12, 12)
    whole = measured(vae, "decode", source)
    card = virtual(whole.base + int(whole.peak * 1.3))
    request = Request(card.read().total)

    known, cancel = Calibrations(), Cancel()
    told = AfterTheProbe(cancel.set)
    job = Job(vae, "decode", card, request, cancel, told, calibrations=known)
    with faults(card, workspace=_secret):
        with pytest.raises(Cancelled):
            job.run(source)
        assert_back(card)
        outcome = run_checked(Job(vae, "decode", card, request, calibrations=known), source)
    assert "oom" not in {attempt.outcome for attempt in outcome.attempts}
    assert "probe" not in {attempt.stage for attempt in outcome.attempts}


def test_o14_a_cancel_during_the_probe_gives_everything_back() -> None:
    """It stops before the probe's only call."""
    vae, source = untold(toy_vae("V3")), torch.rand(1, 16, 5, 12, 12)
    whole = measured(vae, "decode", source)
    card = virtual(whole.base + int(whole.peak * 1.3))
    calls: list[int] = []

    def decode(z: torch.Tensor) -> torch.Tensor:
        if z.device.type != "meta":
            calls.append(z.shape[-1])
            if z.shape[-1] < 12:
                raise Cancelled("during the probe")
        return vae.decode(z)

    job = Job(replace(vae, decode=decode), "decode", card, Request(card.read().total))
    with faults(card, workspace=_secret), pytest.raises(Cancelled):
        job.run(source)
    assert calls == [12, 8]
    assert_back(card)
    assert_usable(card)


def test_o14_a_shortage_after_a_probe_names_what_was_tried_alone() -> None:
    """The probe held and gave nothing: it is in the report's attempts, not in the sentence."""
    vae, source = untold(toy_vae("V2")), torch.rand(1, 4, 24, 24)
    whole = measured(vae, "decode", source)
    card = virtual(whole.base + int(whole.peak * 1.3))

    after: list[int] = []

    def worse(operator: str, size: int) -> int:
        return 2**30 if after else _secret(operator, size)

    told = AfterTheProbe(lambda: after.append(1))
    with faults(card, workspace=worse), pytest.raises(MemoryShortage) as caught:
        Job(vae, "decode", card, Request(card.read().total), recorder=told).run(source)
    assert [a.stage for a in caught.value.attempts].count("probe") == 1
    assert "None" not in str(caught.value)
    assert "probe" not in str(caught.value)
    assert_back(card)


@pytest.mark.parametrize("batch", [1, 4])
def test_o14_where_not_even_the_smallest_tile_holds_the_tries_are_few(batch: int) -> None:
    """A probe that ran out has shown that every larger tile would: none of those is tried."""
    vae, source = untold(toy_vae("V2")), torch.rand(batch, 4, 96, 96)
    whole = measured(vae, "decode", source)
    card = virtual(whole.base + int(whole.peak * 1.3))
    with faults(card, workspace=lambda *_: 2**40), pytest.raises(MemoryShortage) as caught:
        Job(vae, "decode", card, Request(card.read().total)).run(source)
    tried = [a.rung for a in caught.value.attempts if a.outcome == "oom"]
    assert tried == ["whole", "probe 64x64", "tiles 64x64", "tiles 64x64, input on the host"]
    assert_back(card)


def test_o14_two_accidents_do_not_end_a_job() -> None:
    """Whole and probe both fail, once: the smallest tile is still tried."""
    vae, source = untold(toy_vae("V2")), torch.rand(1, 4, 32, 32)
    whole = measured(vae, "decode", source)
    card = virtual("256MiB")
    failed: list[str] = []

    def twice(operator: str, size: int) -> None:
        if "convolution" in operator and len(failed) < 2:
            failed.append(operator)
            raise torch.OutOfMemoryError("somebody else had it")

    with faults(card, on_allocate=twice):
        outcome = run_checked(Job(vae, "decode", card, Request(256 * MIB)), source, whole.value)
    assert [a.rung for a in outcome.attempts] == ["whole", "probe 64x64", "tiles 64x64"]
