"""W14 for fitted modules: what comes anew does not stand beside what it replaces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tightfit
from tests.cases.common import assert_back, virtual
from tests.loras import bytes_of, given, load, wanted
from tightfit.card.virtual.card import VirtualCard
from tightfit.units import MIB

STRENGTHS = (0.5, 1.0, 0.5, 1.0)


def network(seed: int = 0) -> Any:
    """A transformer of 18 MiB."""
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(seed)
    model = FluxTransformer2DModel(
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=64,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=16,
        axes_dims_rope=(16, 24, 24),
    )
    return model.eval().requires_grad_(False)


def card_for(model: Any) -> VirtualCard:
    """Of one and a half times its bytes."""
    return virtual(3 * bytes_of(model) // 2 // MIB * MIB)


def peak(card: VirtualCard, work: Callable[[], None]) -> int:
    """Of bytes in tensors, while it is done."""
    card.reset_peaks()
    work()
    found = card.read().peak_allocated
    assert found is not None
    return found


@pytest.mark.parametrize("way", ["beside", "fused"])
def test_w14_another_strength_of_a_lora_needs_no_more_than_the_first(way: str) -> None:
    """Whether it is added to results or to weights; with the numbers that each strength has."""
    module = network()
    card = card_for(module)
    expected = {
        strength: wanted(network(), functools.partial(patch, way=way, strength=strength))
        for strength in set(STRENGTHS)
    }
    assert not torch.equal(*expected.values())
    tightfit.fit(module, card=card)
    load(module, 5, "a")
    peaks = []
    for strength in STRENGTHS:

        def run(strength: float = strength) -> None:
            patch(module, way, strength)
            found = given(module)
            if way == "fused":
                module.unfuse_lora()
                torch.testing.assert_close(found, expected[strength], rtol=1e-5, atol=1e-5)
            else:
                assert torch.equal(found, expected[strength])

        peaks.append(peak(card, run))
    assert max(peaks) <= peaks[0] + MIB
    assert tightfit.fitted(module).attempts == []
    tightfit.unfit(module)
    assert_back(card)


def patch(module: Any, way: str, strength: float) -> None:
    """Apply its LoRA, which is loaded if need be, with that strength."""
    if not getattr(module, "peft_config", None):
        load(module, 5, "a")
    module.set_adapters("a", strength)
    if way == "fused":
        module.fuse_lora()


@pytest.mark.parametrize("way", ["fit", "free", "by itself"])
def test_w14_two_models_that_take_turns_never_stand_side_by_side(way: str) -> None:
    """A/B/A/B, by hand, with the card emptied between them, or as a session has it.

    Left to itself, a session keeps one and streams the other through the rest of the card, which
    copies less than to exchange them: then the card is the bound, and it is not met.
    """
    models = [network(0), network(1)]
    card = card_for(models[0])
    expected = [wanted(model) for model in models]
    peaks = []
    with tightfit.Session(card=card) as session:
        for model in models if way != "fit" else ():
            session.fit(model)
        for turn in range(6):
            model, right = models[turn % 2], expected[turn % 2]

            def run(model: Any = model, right: torch.Tensor = right) -> None:
                if way == "fit":
                    tightfit.fit(model, card=card)
                assert torch.equal(given(model), right)
                assert tightfit.fitted(model).attempts == []
                if way == "fit":
                    tightfit.unfit(model)
                elif way == "free":
                    assert session.free() >= bytes_of(model)

            peaks.append(peak(card, run))
    bound = card.read().total if way == "by itself" else peaks[0] + MIB
    assert max(peaks) <= bound
    assert_back(card)
