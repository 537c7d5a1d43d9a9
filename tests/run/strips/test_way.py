"""Strips as a rung of a job: what goes wrong on the way, and what is left then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.cases.common import Idle, assert_back, measured, virtual
from tests.run.strips.running import distance
from tightfit import api
from tightfit.card.host_memory import read_host_memory
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import MemoryShortage
from tightfit.place.streaming.pinned import Pins
from tightfit.place.strips import arena
from tightfit.run.cancel import Cancel
from tightfit.run.job import Job, Request
from tightfit.run.outcome import Outcome
from tightfit.run.strips import way
from tightfit.run.vae import Vae
from tightfit.testing import faults, oom_after, toy_vae
from tightfit.units import GIB, KIB, MIB
from tightfit.weigh import weight_bytes


def _case(batch: int = 1) -> tuple[Vae, torch.Tensor, torch.Tensor, int]:
    """A VAE with norms, a latent, its picture, and a budget in which only strips fit."""
    vae, source = toy_vae("V2N", width=8), torch.randn(batch, 4, 22, 17)
    free = measured(vae, "decode", source[:1])
    value = measured(vae, "decode", source).value
    return vae, source, value, weight_bytes(vae.module) + source.nbytes + free.peak // 2


def _decoded(
    vae: Vae, source: torch.Tensor, card: VirtualCard, budget: int, **kw: object
) -> Outcome:
    request = Request(budget, estimate=bool(kw.pop("estimate", True)))
    return Job(vae, "decode", card, request, **kw).run(source)  # type: ignore[arg-type]


def _rung(outcome: Outcome) -> str:
    return outcome.attempt.rung


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", ["", ",allocator=native", ",allocator=expandable"])
def test_strips_are_the_rung_where_a_whole_does_not_fit(batch: int, kind: str) -> None:
    """On every allocator, one item at a time; within the budget, and no wait is missing."""
    vae, source, value, budget = _case(batch)
    if kind:
        budget = 20 * MIB
        source = torch.randn(batch, 4, 60, 60)
        value = measured(vae, "decode", source).value
    card = virtual(f"1GiB{kind}")
    with faults(card, lanes="strict", lane_seed=3):
        outcome = _decoded(vae, source, card, budget)
    assert outcome.exact
    assert "strips" in _rung(outcome)
    assert distance(outcome.value, value) <= 1e-5
    assert outcome.peak_reserved_bytes is not None
    assert outcome.peak_reserved_bytes <= budget
    assert_back(card)


def test_a_budget_through_the_library_gives_the_same_picture() -> None:
    """`tightfit.decode(vram=...)`, as users call it."""
    vae, source, value, budget = _case()
    source = 0.1 * source  # so that no pixel is cut off
    result = api.decode(source, vae=vae, card="virtual:1GiB", vram=budget)
    whole = api.decode(source, vae=vae, card="virtual:1GiB")
    assert result.report.exact
    assert distance(result.value.pixels, whole.value.pixels) <= 1e-5
    assert value.shape == whole.value.pixels.shape
    assert "strips" in result.report.attempts[-1]["rung"]


def test_a_stop_at_any_strip_leaves_the_card_as_it_was() -> None:
    """Ctrl-C and a cancelled job alike; the next job is right."""
    vae, source, value, budget = _case()
    card = virtual(GIB)
    for strips in (0, 1, 4):
        for kind in (KeyboardInterrupt, None):
            cancel, told = Cancel(), iter(range(strips))

            def progress(
                *_: object,
                told: Iterator[int] = told,
                kind: type[BaseException] | None = kind,
                cancel: Cancel = cancel,
            ) -> None:
                if next(told, None) is None:
                    if kind is not None:
                        raise kind
                    cancel.set()

            with pytest.raises(BaseException):  # noqa: B017, PT011
                _decoded(vae, source, card, budget, cancel=cancel, progress=progress)
            assert_back(card)
    assert distance(_decoded(vae, source, card, budget).value, value) <= 1e-5


def test_a_card_that_is_full_at_any_allocation_gives_the_picture_or_says_so() -> None:
    """Another rung takes over; whatever is said to be exact is, and nothing is left."""
    vae, source, value, budget = _case()
    card = virtual(GIB)
    rungs, said = set(), []
    for after in (*range(0, 60, 6), *range(60, 900, 97)):
        with oom_after(card, after):
            try:
                outcome = _decoded(vae, source, card, budget)
            except MemoryShortage as error:
                said.append(str(error))
                continue
            finally:
                assert_back(card)
        rungs.add(_rung(outcome))
        if outcome.exact:
            assert distance(outcome.value, value) <= 1e-5
    assert any("strips" in rung for rung in rungs)
    assert all("Not enough memory" in each for each in said)


def test_too_little_host_memory_bars_strips_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are skipped untried, with figures; the next way is taken."""
    vae, source, _, budget = _case()
    short = replace(read_host_memory(), ram_available=0)
    monkeypatch.setattr(way, "read_host_memory", lambda: short)
    card = virtual(GIB)
    outcome = _decoded(vae, source, card, budget)
    assert "strips" not in _rung(outcome)
    barred = [a for a in outcome.attempts if "strips" in a.rung]
    assert barred
    assert all(a.outcome == "skipped" for a in barred)
    assert any("host memory" in (a.reason or "") for a in barred)
    assert_back(card)


def test_a_refused_pin_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are slower then, and nothing else."""
    vae, source, _, budget = _case()
    card = virtual(GIB)
    plain = _decoded(vae, source, card, budget)
    asked = []

    def refuse(self: Pins, buffer: torch.Tensor) -> bool:
        asked.append(buffer.nbytes)
        return False

    monkeypatch.setattr(arena.Pins, "hold", refuse)
    again = _decoded(vae, source, card, budget)
    assert asked
    assert _rung(again) == _rung(plain)
    assert torch.equal(again.value, plain.value)


def test_idle_models_make_room_for_strips_before_tiles_are_cut() -> None:
    """Whole it does not run though everybody else is gone; exact strips beat tiles beside them."""
    vae, source = toy_vae("V2N"), torch.rand(1, 4, 88, 88)
    reference = measured(vae, "decode", source)
    card = virtual("64MiB")
    idle = Idle(card.device, 63 * MIB - 512 * KIB)
    outcome = Job(vae, "decode", card, Request(64 * MIB, evict=idle.evict)).run(source)
    assert reference.base + reference.peak > 64 * MIB
    assert _rung(outcome) == "strips, idle models evicted"
    assert outcome.exact
    assert distance(outcome.value, reference.value) <= 1e-5
    assert idle.asked == [None]
    assert_back(card)
