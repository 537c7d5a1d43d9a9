"""LoRAs on a real card that come, change, are fused and go while their module is streamed."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tightfit
from tests.loras import flux, given, inputs, load
from tightfit.card import open_card
from tightfit.place import placed

pytest.importorskip("peft")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings(r"ignore::UserWarning:peft\..*"),  # of a second adapter
]
STEPS: list[Callable[[Any], object]] = [
    lambda model: load(model, 5, "a"),
    lambda model: load(model, 6, "b", rank=8),
    lambda model: model.set_adapters(["a", "b"], [0.5, 0.7]),
    lambda model: model.fuse_lora(lora_scale=0.9),
    lambda model: model.unfuse_lora(),
    lambda model: model.delete_adapters("a"),
    lambda model: model.unload_lora(),
]


def wanted(model: Any, device: torch.device) -> torch.Tensor:
    """What a copy gives that is on the card with all its weights, by nobody's streaming."""
    whole = copy.deepcopy(model)
    there = {k: v.to(device) if hasattr(v, "to") else v for k, v in inputs(model.dtype).items()}
    with placed(whole, device), torch.no_grad():
        value: torch.Tensor = whole(**there)[0].cpu()
    return value


@pytest.mark.parametrize(
    ("dtype", "pack"), [(torch.float32, "off"), (torch.bfloat16, "off"), (torch.bfloat16, "on")]
)
@pytest.mark.parametrize("mode", ["high", "none"])
def test_loras_on_a_streamed_module_give_the_bits_of_a_resident_one(
    dtype: torch.dtype, pack: str, mode: str
) -> None:
    """Step by step; afterwards everything is on the host, and the card is as before."""
    card = open_card("cuda:0")
    expected, seen = [], flux(dtype)
    for step in STEPS:
        step(seen)
        expected.append(wanted(seen, card.device))
    del seen
    gc.collect()
    card.sync()
    before = card.read().allocated
    model = flux(dtype)
    tightfit.fit(model, card=card, mode=mode, pack=pack, example=inputs(dtype))
    for step, value in zip(STEPS, expected, strict=True):
        step(model)
        for _ in range(2):
            assert torch.equal(given(model), value)
    assert bool(tightfit.fitted(model).session.residency.streamed) == (mode == "none")
    tightfit.unfit(model)
    gc.collect()
    card.sync()
    assert {held.device.type for held in model.state_dict().values()} == {"cpu"}
    assert card.read().allocated == before
