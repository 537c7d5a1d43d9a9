"""A05 for a module that is at work on the card of a VAE: who is not in the way is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.cases.common import measured, run_checked, untold, virtual
from tightfit.plan.tilesize import TileWish, parse_tile
from tightfit.run.job import Job, Request
from tightfit.testing import toy_vae
from tightfit.units import MIB

WIDTH = 1024


def denoiser() -> nn.Sequential:
    """Ten layers of 4 MiB."""
    torch.manual_seed(0)
    layers = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(10))
    return nn.Sequential(*layers).eval().requires_grad_(False)


@pytest.mark.slow
@pytest.mark.parametrize("wish", ["64", "auto"])
def test_a05_a_decode_in_tiles_leaves_an_idle_model_where_it_is(wish: str) -> None:
    """Whole it needs more than the card has, with the others gone too; in tiles a few MiB.

    Asked for, or since nothing else holds: nobody goes, and the next call copies nothing.
    """
    vae, latent = untold(toy_vae("V2")), torch.rand(1, 4, 88, 88)
    whole = measured(vae, "decode", latent)
    assert whole.base + whole.peak > 64 * MIB
    tiled = measured(vae, "decode", latent, parse_tile("64"))
    module, x, card = denoiser(), torch.randn(2, WIDTH), virtual("64MiB")
    expected = module(x)
    tightfit.fit(module, card=card, example=(x,))
    assert torch.equal(module(x).cpu(), expected)
    fitted = tightfit.fitted(module)
    there, copied = fitted.taken, fitted.session.copies.bytes
    asked: list[int | None] = []

    def evict(lacking: int | None) -> int:
        asked.append(lacking)
        return fitted.rest()

    request = Request(64 * MIB, wish=_wish(wish), evict=evict)
    outcome = run_checked(Job(vae, "decode", card, request), latent, whole.value)
    assert asked == []
    assert outcome.attempt.tile is not None
    if wish != "auto":
        assert outcome.peak_bytes is not None
        assert outcome.baseline_bytes is not None
        assert outcome.peak_bytes - outcome.baseline_bytes <= 1.5 * tiled.peak
    assert fitted.taken == there
    assert torch.equal(module(x).cpu(), expected)
    assert fitted.session.copies.bytes == copied
    tightfit.unfit(module)


def _wish(text: str) -> TileWish:
    found: Any = parse_tile(text)
    return found
