"""What a run of a VAE will need, before it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.cases.common import OFF, assert_back, measured, run_checked, virtual, weights_and_input
from tightfit.run.estimate import Estimator
from tightfit.run.job import Job, Request
from tightfit.run.vae import Direction, Vae
from tightfit.testing import toy_vae
from tightfit.units import MIB

SHAPES = {"V2": (2, 4, 24, 20), "V2N": (1, 4, 12, 16), "V3": (1, 16, 2, 12, 10)}


def estimator(vae: Vae, allocator: str = "exact", factor: float = 1.0) -> Estimator:
    """Of a decode."""
    return Estimator(vae, "decode", factor, allocator)


def blind(vae: Vae) -> Vae:
    """Its code depends on values, so no dry run can tell."""

    def decode(z: torch.Tensor) -> torch.Tensor:
        return vae.decode(z) if z.max().item() < 1e9 else z

    return replace(vae, decode=decode)


@pytest.mark.parametrize("direction", ["encode", "decode"])
@pytest.mark.parametrize("name", SHAPES)
def test_on_a_card_without_slack_it_is_what_will_be_measured(
    name: str, direction: Direction
) -> None:
    """To the byte: tensors count in the blocks that they take."""
    vae, source = toy_vae(name, width=8), torch.rand(SHAPES[name])
    source = source if direction == "decode" else vae.decode(source)
    told = Estimator(vae, direction, 1.0).likely(tuple(source.shape))
    assert told == measured(vae, direction, source).peak


@pytest.mark.parametrize("allocator", ["exact", "native", "async", "expandable"])
@pytest.mark.parametrize("name", SHAPES)
def test_what_it_needs_is_enough(name: str, allocator: str) -> None:
    """A budget of weights, input and need does the job whole, also where memory has steps."""
    vae, source = toy_vae(name, width=8), torch.rand(SHAPES[name])
    need = estimator(vae, allocator).need(SHAPES[name])
    assert need is not None
    budget = weights_and_input(vae, source) + need
    card = virtual(f"512MiB,allocator={allocator}")
    request = Request(budget, wish=OFF, estimate=False)
    assert run_checked(Job(vae, "decode", card, request), source).attempt.outcome == "ok"


@pytest.mark.parametrize("allocator", ["native", "async", "expandable"])
def test_fragments_are_needed_and_are_no_tensors(allocator: str) -> None:
    """What must be free holds them; what will be in tensors does not."""
    vae, source = toy_vae("V2"), torch.rand(1, 4, 40, 40)
    told = estimator(vae, allocator)
    card = virtual(f"512MiB,allocator={allocator}")
    outcome = run_checked(Job(vae, "decode", card, Request(512 * MIB)), source)
    need, likely = told.need((1, 4, 40, 40)), told.likely((1, 4, 40, 40))
    assert outcome.peak_bytes is not None
    assert outcome.baseline_bytes is not None
    assert likely == pytest.approx(outcome.peak_bytes - outcome.baseline_bytes, rel=0.01)
    assert need is not None
    assert need > 1.05 * likely


def test_a_network_that_needs_values_cannot_be_told() -> None:
    """Unknown stays unknown, whatever a real run shows, and no prediction was wrong."""
    told = estimator(blind(toy_vae("V2")))
    shape = (1, 4, 8, 8)
    told.learn(shape, 1000, held=True)
    told.learn(shape, None, held=False)
    assert told.need(shape) is told.likely(shape) is None
    assert told.line(shape, (1, 4, 16, 16), told.need) == (None, None)
    assert told.calibration.seen == ()
    assert not told.missed


def test_a_dry_run_leaves_the_module_as_it_was() -> None:
    """Weights, and what it keeps on itself; also after a failure."""
    for make in (lambda vae: vae, blind):
        vae = toy_vae("V3")
        before = {name: id(p) for name, p in vae.module.named_parameters()}
        estimator(make(vae)).need(SHAPES["V3"])
        assert {name: id(p) for name, p in vae.module.named_parameters()} == before
        assert vae.module._feat == [None] * 5


def test_a_try_that_did_not_hold_shows_that_the_prediction_was_wrong() -> None:
    """Until a real run corrects it; one of which nothing was measured does not."""
    told, shape = estimator(toy_vae("V2")), (1, 4, 8, 8)
    assert not told.missed
    told.learn(shape, 5000, held=False)
    assert told.missed
    assert told.calibration.seen == ()
    told.learn(shape, None, held=True)
    assert told.missed
    told.learn(shape, 1_000_000, held=True)
    assert not told.missed
    assert told.likely(shape) == 1_000_000


def test_a_run_with_a_fixed_cost_is_told_from_one_that_grows() -> None:
    """8 MiB beside every call, seen at two sizes, are 8 MiB beside a large one."""
    told, fixed = estimator(toy_vae("V2")), 8 * MIB
    plain = {side: told.likely((1, 4, side, side)) or 0 for side in (8, 24, 64)}
    for side in (8, 24):
        told.learn((1, 4, side, side), plain[side] + fixed, held=True)
    assert told.likely((1, 4, 64, 64)) == pytest.approx(plain[64] + fixed, rel=0.001)


def test_its_line_goes_through_two_sizes() -> None:
    """Fixed bytes and slope give both back."""
    told = estimator(toy_vae("V2"))
    small, large = (1, 4, 8, 8), (1, 4, 32, 24)
    fixed, slope = told.line(small, large, told.likely)
    assert fixed is not None
    assert slope is not None
    assert fixed + slope * 32 * 24 == pytest.approx(told.likely(large), abs=2)
    assert told.line(small, small, told.likely) == (None, None)


def test_nothing_is_allocated_on_a_card() -> None:
    """Weights that lie on one stay there meanwhile."""
    card = virtual(64 * MIB)
    vae = toy_vae("V2")
    vae.module.to(card.device)
    before = card.read()
    estimator(vae).need((1, 4, 512, 512))
    assert card.read() == before
    vae.module.to("cpu")
    assert_back(card)
