"""`fit` of modules as other libraries make and call them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tightfit.card import open_card

WIDTH = 32


class Normed(nn.Module):
    """Weight norm of the old style, as vocoders and codecs of sound have it."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.layers = nn.ModuleList(
                nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)) for _ in range(4)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class TwoSided(nn.Module):
    """Pipelines call one half of it by a method, and never the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.Embedding(8, WIDTH)
        self.image = nn.Linear(WIDTH, WIDTH)

    def get_text_features(self, ids: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.text(ids)
        return value

    def get_image_features(self, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.image(x)
        return value


def made(kind: type[nn.Module]) -> Any:
    torch.manual_seed(0)
    return kind().eval()


def by_fit(module: Any, method: str, given: torch.Tensor, mode: str) -> torch.Tensor:
    card = open_card("virtual:1GiB")
    tightfit.fit(module, card=card, mode=mode)
    try:
        with torch.no_grad():
            value: torch.Tensor = getattr(module, method)(given.to(card.device))
        return value.to("cpu", copy=True)
    finally:
        tightfit.unfit(module)


@pytest.mark.parametrize("mode", ["high", "none"])
def test_a_weight_norm_that_was_never_called_is_fitted(mode: str) -> None:
    """Its weights were made with gradients, which hold on to what they were made of."""
    x = torch.randn(2, WIDTH)
    module = made(Normed)
    assert module.layers[0].weight.grad_fn is not None
    fitted = by_fit(module, "forward", x, mode)
    with torch.no_grad():
        wanted = made(Normed).to("cpu")(x)
        assert torch.equal(module(x), wanted)
    assert torch.allclose(fitted, wanted, atol=1e-6)


@pytest.mark.parametrize("mode", ["high", "none"])
@pytest.mark.parametrize("method", ["get_text_features", "get_image_features"])
def test_a_half_of_an_encoder_is_a_way_into_it(method: str, mode: str) -> None:
    """Its weights are there, though nobody calls the whole."""
    given = torch.arange(8) if "text" in method else torch.randn(2, WIDTH)
    module = made(TwoSided)
    with torch.no_grad():
        wanted = getattr(module, method)(given)
    assert torch.allclose(by_fit(module, method, given, mode), wanted, atol=1e-6)
