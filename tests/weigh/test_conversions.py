"""Which weights are converted before they are used, and into what."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tightfit.weigh.conversions import Conversions, grid_of

FP8 = torch.float8_e4m3fn


def eight_bits(layer: nn.Module, dtype: torch.dtype = FP8) -> nn.Module:
    weight: nn.Parameter = layer.weight  # type: ignore[assignment]
    weight.requires_grad_(False).data = weight.data.to(dtype)
    return layer


def names(module: nn.Module) -> list[str]:
    return [layer.name for layer in Conversions.of(module).layers]


@pytest.mark.parametrize(
    ("scale", "weight", "grid"),
    [
        ((), (300, 200), "tensor"),
        ((1,), (300, 200), "tensor"),
        ((1, 1), (300, 200), "tensor"),
        ((300,), (300, 200), "rows"),
        ((300, 1), (300, 200), "rows"),
        ((8, 1, 1, 1), (8, 3, 3, 3), "rows"),
        ((3, 2), (300, 200), "blocks"),
        ((200,), (300, 200), None),
        ((1, 200), (300, 200), None),
        ((3, 4), (300, 200), None),
        ((2, 3), (300, 200), None),
        ((300, 200), (300, 200), None),
        ((0,), (300, 200), None),
    ],
)
def test_the_shape_of_a_scale_tells_what_it_is_for(
    scale: tuple[int, ...], weight: tuple[int, ...], grid: str | None
) -> None:
    """Or that it cannot be told."""
    assert grid_of(torch.Size(scale), torch.Size(weight)) == grid


def test_a_module_in_what_it_computes_in_has_none() -> None:
    """Halves and floats side by side are its own business."""
    net = nn.Sequential(nn.Linear(4, 4).bfloat16(), nn.LayerNorm(4), nn.Conv2d(1, 1, 1).half())
    assert names(net) == []


def test_what_lies_beside_a_converted_weight_goes_with_it() -> None:
    """A bias has to be of the dtype of its weight; a scale is not used itself."""
    net = nn.Sequential(eight_bits(nn.Linear(4, 4)), nn.Linear(4, 4))
    net[0].register_buffer("weight_scale", torch.ones(4))
    (layer,) = Conversions.of(net).layers
    assert [each.held.path for each in layer.weights] == ["0.weight", "0.bias"]
    assert layer.weights[0].scale is not None
    assert layer.weights[0].scale.path == "0.weight_scale"
    assert layer.weights[1].scale is None


def test_other_layers_follow_a_call_that_is_wider_than_they_are() -> None:
    """And are left as they are by one that is narrower: they are kept wide on purpose."""
    net = nn.Sequential(eight_bits(nn.Linear(4, 4)), nn.LayerNorm(4).half(), nn.LayerNorm(4))
    assert names(net) == ["0", "1"]
    half = Conversions.of(net).layers[1].weights[0]
    assert half.used_in(torch.float32, torch.float16) == torch.float32
    assert half.used_in(torch.bfloat16, torch.float16) == torch.float16


def test_integers_are_weights_where_they_have_a_scale() -> None:
    """Else nobody knows what they are."""
    net = nn.Sequential(eight_bits(nn.Linear(4, 4), torch.int8))
    assert names(net) == []
    net[0].register_buffer("scale_weight", torch.ones(()))
    assert names(net) == ["0"]


def test_a_tie_has_one_scale() -> None:
    """Beside whichever of its places."""
    net = nn.Sequential(eight_bits(nn.Linear(4, 4)), eight_bits(nn.Linear(4, 4)))
    net[0].weight = net[1].weight
    net[1].register_buffer("weight_scale", torch.ones(4))
    layers = Conversions.of(net).layers
    assert [layer.weights[0].scale is not None for layer in layers] == [True, True]


def test_the_dtype_of_a_call_is_that_of_most_of_its_values() -> None:
    """A time step in float32 beside latents in bfloat16 changes nothing, in whichever order."""
    net = nn.Sequential(eight_bits(nn.Linear(4, 4)), nn.LayerNorm(4).half())
    what = Conversions.of(net)
    latents, time = torch.zeros(2, 4, dtype=torch.bfloat16), torch.zeros(2)
    assert what.dtype((time, latents, "name", 3)) == torch.bfloat16
    assert what.dtype((latents, time)) == torch.bfloat16
    assert what.dtype((time,)) == torch.float32
    assert what.dtype((torch.zeros(9, dtype=torch.int64), latents.to(FP8))) == what.usual


@pytest.mark.parametrize(
    ("other", "usual"),
    [(torch.float16, torch.float16), (torch.float32, torch.float32), (None, None)],
)
def test_without_floats_the_other_weights_tell(
    other: torch.dtype | None, usual: torch.dtype | None
) -> None:
    """A scale is none of them, whatever its dtype; where there are none it is bfloat16."""
    net = nn.Sequential(eight_bits(nn.Linear(4, 4, bias=False)))
    net[0].register_buffer("weight_scale", torch.ones(4))
    if other is not None:
        net.append(nn.LayerNorm(4).to(other))
    assert Conversions.of(net).usual == (usual or torch.bfloat16)
