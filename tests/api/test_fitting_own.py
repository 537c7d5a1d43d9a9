"""Weights that a module itself owns, which pipelines read between its calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.api.test_fitting import WIDTH, inputs, opened, wanted
from tightfit.plan.streaming.ring import Ring


class Owning(nn.Module):
    """Layers, and beside them a weight and a buffer of its own; one is used by a method alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(1, WIDTH))
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.register_buffer("silence", torch.randn(1, 8, WIDTH))
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x + self.first))
        return x

    def post_process_latents(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale.to(x.device)


OWN = ("first", "silence", "scale")


def owning() -> Any:
    torch.manual_seed(0)
    return Owning().eval()


def read(module: Any, device: torch.device) -> dict[str, torch.Tensor]:
    """As pipelines do."""
    return {name: getattr(module, name).to(device=device)[:1].cpu() for name in OWN}


@pytest.mark.parametrize("mode", ["none", "auto"])
@pytest.mark.parametrize("example", [False, True])
def test_what_a_module_owns_is_read_right_between_calls(mode: str, example: bool) -> None:
    """Before its first call, between two, and at rest; calls have their bits, and all goes home."""
    module, x = owning(), inputs()
    before = {name: getattr(module, name).detach().clone() for name in OWN}
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("2MiB")
    given = {"example": (x,)} if example else {}
    tightfit.fit(module, card=card, mode=mode, **given)
    with torch.no_grad():
        for rests in (False, True, False):
            seen = read(module, card.device)
            assert all(torch.equal(seen[name], before[name][:1]) for name in OWN)
            assert torch.equal(module(x).cpu(), expected)
            seen = read(module, card.device)
            assert all(torch.equal(seen[name], before[name][:1]) for name in OWN)
            if rests:
                tightfit.fitted(module).rest()
    tightfit.unfit(module)
    for name in OWN:
        kept = getattr(module, name)
        assert kept.device.type == "cpu"
        assert torch.equal(kept, before[name])
    assert module.first.requires_grad
    assert card.read().allocated == 0


@pytest.mark.parametrize("mode", ["none", "auto"])
def test_a_method_finds_what_its_module_owns(mode: str) -> None:
    """The latents of a prior are scaled by a method that calls no layer."""
    module, x = owning(), inputs()
    with torch.no_grad():
        expected = module.post_process_latents(x)
        card = opened("2MiB")
        tightfit.fit(module, card=card, mode=mode)
        module(x)
        for _ in range(2):
            assert torch.equal(module.post_process_latents(x.to(card.device)).cpu(), expected)
            tightfit.fitted(module).rest()
    tightfit.unfit(module)
    assert card.read().allocated == 0


def test_what_was_resident_is_not_taken_for_written_once_it_streams() -> None:
    """To show a value between calls leaves the count of its writes alone."""
    module, x = owning(), inputs()
    with torch.no_grad():
        expected = wanted(module, lambda card: module(x.to(card.device)))
        card = opened("2MiB")
        tightfit.fit(module, card=card, example=(x,))
        fitted = tightfit.fitted(module)
        residency = fitted.plan.stages[0].residency
        assert residency is not None
        nothing = replace(
            residency,
            stays=(False,) * len(residency.pieces),
            ring=Ring("block", max(piece.slot for piece in residency.pieces), 1),
        )
        for _ in range(2):
            assert torch.equal(module(x).cpu(), expected)
            fitted.session.change(nothing)
    tightfit.unfit(module)
