"""A small FLUX transformer, LoRAs for it, and what it gives with them on a large card."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from tests.cases.common import virtual
from tests.streaming import resident

LAYERS = (
    "transformer_blocks.0.attn.to_q",
    "transformer_blocks.0.ff.net.0.proj",
    "single_transformer_blocks.0.attn.to_v",
    "single_transformer_blocks.1.proj_mlp",
    "single_transformer_blocks.1.proj_out",
)


def flux(dtype: torch.dtype = torch.float32) -> Any:
    """Of one double and two single blocks."""
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 6, 6),
    )
    if dtype != model.dtype:  # diffusers warns of it
        model.to(dtype=dtype)
    return model.eval().requires_grad_(False)


def inputs(dtype: torch.dtype = torch.float32, **more: Any) -> dict[str, Any]:
    """Of one step with 16 tokens of a picture and 8 of text."""
    draw = torch.Generator().manual_seed(1)
    return {
        "hidden_states": torch.randn(1, 16, 64, generator=draw).to(dtype),
        "encoder_hidden_states": torch.randn(1, 8, 32, generator=draw).to(dtype),
        "pooled_projections": torch.randn(1, 16, generator=draw).to(dtype),
        "timestep": torch.full((1,), 0.5, dtype=dtype),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(8, 3),
        "return_dict": False,
        **more,
    }


def lora(model: Any, seed: int, *, rank: int = 4) -> dict[str, torch.Tensor]:
    """As trainers save it, for some layers of `model`, strong enough to be seen."""
    draw = torch.Generator().manual_seed(seed)
    state = {}
    for path in LAYERS:
        layer = model.get_submodule(path)
        layer = getattr(layer, "base_layer", layer)
        one = torch.randn(rank, layer.in_features, generator=draw)
        two = torch.randn(layer.out_features, rank, generator=draw)
        state[f"transformer.{path}.lora_A.weight"] = (one / 4).to(model.dtype)
        state[f"transformer.{path}.lora_B.weight"] = (two / 4).to(model.dtype)
    return state


def load(model: Any, seed: int, name: str, **kwargs: Any) -> None:
    """Load that LoRA under this name."""
    model.load_lora_adapter(lora(model, seed, **kwargs), adapter_name=name)


def wanted(
    model: Any, change: Callable[[Any], object] = lambda model: None, **more: Any
) -> torch.Tensor:
    """What a copy of `model`, which is on the host, gives after a change, all on a large card."""
    whole, card = copy.deepcopy(model), virtual("1GiB")
    change(whole)
    given = inputs(model.dtype, **more)

    def call() -> torch.Tensor:
        there = {k: v.to(card.device) if hasattr(v, "to") else v for k, v in given.items()}
        found: torch.Tensor = whole(**there)[0]
        return found

    value, _ = resident(whole, card, call)
    return value


def given(model: Any, **more: Any) -> torch.Tensor:
    """What a fitted `model` gives."""
    with torch.no_grad():
        value: torch.Tensor = model(**inputs(model.dtype, **more))[0].cpu()
    return value


def bytes_of(model: Any) -> int:
    """Of its parameters."""
    return sum(each.nbytes for each in model.parameters())
