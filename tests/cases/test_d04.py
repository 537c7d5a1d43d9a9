"""D04: enough memory in all, and no single allocation above a limit of the back end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import tightfit
from tests.cases.common import assert_back, run_checked, virtual
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import MemoryShortage, UsageError
from tightfit.run.job import Job, Request
from tightfit.testing import faults, toy_vae
from tightfit.units import MIB

LIMIT = 16 * MIB
WIDTH, ROWS = 1024, 5120
"""A weight of 20 MiB."""


@pytest.fixture(name="card")
def limited_card() -> Iterator[VirtualCard]:
    """Of 64 MiB, which gives 16 MiB at once; what is asked of it is seen."""
    card = virtual("64MiB")
    asked: list[int] = []

    def look(operator: str, size: int) -> None:
        del operator
        asked.append(size)

    with faults(card, max_allocation=LIMIT, on_allocate=look):
        yield card
    assert_back(card)
    assert asked


def network() -> nn.Sequential:
    """Layers of 20, 4, 20 and 8 MiB; the last two are one block."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, ROWS),
        nn.Linear(ROWS, 204),
        nn.Sequential(nn.Linear(204, WIDTH), nn.Linear(WIDTH, ROWS), nn.Linear(ROWS, 409)),
    ).eval()


@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
def test_d04_a_decode_with_an_activation_above_the_limit(card: VirtualCard, estimate: bool) -> None:
    """Of 24 MiB, in a picture of 768x512: in strips or tiles, and the picture is the whole one."""
    vae = toy_vae("V2")
    latent = torch.rand(1, 4, 96, 64, generator=torch.Generator().manual_seed(1))
    height, width, channels = 8 * 96, 8 * 64, 16
    assert 4 * channels * height * width == 24 * MIB
    with torch.no_grad():
        whole = vae.decode(latent)
    job = Job(vae, "decode", card, Request(64 * MIB, estimate=estimate))
    outcome = run_checked(job, latent, whole, tolerance=1e-5)
    assert outcome.attempt.rung != "whole"
    assert outcome.attempt.exact


@pytest.mark.parametrize("vram", ["64MiB", "24MiB"], ids=["resident", "streamed"])
def test_d04_a_weight_above_the_limit_is_used_in_slices(card: VirtualCard, vram: str) -> None:
    """Of 20 MiB: nothing above 16 MiB is asked for, and it is said; the rest moves in leaves."""
    module, x = network(), torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    layers = dict(module.named_modules())
    with torch.no_grad():
        expected = module(x)
        tightfit.fit(module, card=card, vram=vram)
        refused = card.read().refusals
        values = [module(x).cpu() for _ in range(3)]
        assert card.read().refusals == refused == 0
    kept = tightfit.fitted(module)
    assert bool(kept.session.residency.streamed) == (vram == "24MiB")
    assert "`0` is computed in 5 slices: its weight of 20.0 MiB is above" in kept.explain()
    state = module.state_dict()
    assert list(state) == list(before)
    assert all(torch.equal(state[name], value) for name, value in before.items())
    tightfit.unfit(module)
    assert dict(module.named_modules()) == layers
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())
    assert all(torch.equal(value, values[0]) for value in values)
    torch.testing.assert_close(values[0], expected, rtol=1e-5, atol=1e-5)


def test_d04_what_cannot_be_cut_is_refused_by_name(card: VirtualCard) -> None:
    """And the module is as it was."""
    module = nn.Sequential(nn.Linear(WIDTH, ROWS), nn.Embedding(ROWS, WIDTH))
    layers = list(module)
    with pytest.raises(UsageError, match=r"`1` has a weight of 20\.0 MiB, and the card gives 16"):
        tightfit.fit(module, card=card)
    assert list(module) == layers
    with pytest.raises(UsageError, match="`Linear` has a weight"):
        tightfit.fit(nn.Linear(WIDTH, ROWS), card=card)
    wide = nn.Sequential(nn.Linear(WIDTH, 204).eval())
    tightfit.fit(wide, card=card)
    with torch.no_grad(), pytest.raises(MemoryShortage):
        wide(torch.zeros(24 * MIB // (4 * 204), WIDTH // 1))
    tightfit.unfit(wide)
    with torch.no_grad():  # the same card does a small job then
        tightfit.fit(wide, card=card)
        assert wide(torch.zeros(2, WIDTH)).shape == (2, 204)
    tightfit.unfit(wide)
