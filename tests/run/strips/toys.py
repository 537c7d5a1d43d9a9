"""Small networks of any shape that strips have to run."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional

KINDS = (
    "conv", "valid", "norm", "silu", "down", "up", "skip", "join", "attention", "same pad",
    "mirror", "even", "shuffle", "inplace", "pool", "rms", "half",
)  # fmt: skip


class Toy(nn.Module):
    """Layers of `kinds`, one after the other, on pictures [B,C,H,W]; seeded."""

    def __init__(self, kinds: list[str], seed: int) -> None:
        super().__init__()
        luck = random.Random(seed)
        width = 4
        self.kinds = kinds
        self.layers = nn.ModuleList()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        for kind in kinds:
            dilation = luck.choice([1, 1, 2])
            size = luck.choice([1, 3, 3, 5])
            edge = dilation * (size - 1) // 2
            made: nn.Module = nn.Identity()
            if kind in ("conv", "skip", "valid", "same pad", "mirror"):
                own = edge if kind in ("conv", "skip") else 0
                made = nn.Conv2d(width, width, size, padding=own, dilation=dilation)
            elif kind == "norm":
                made = nn.GroupNorm(2, width)
            elif kind == "down":
                made = nn.Conv2d(width, width, 3, stride=2)
            elif kind == "join":
                made = nn.Conv2d(2 * width, width, 1)
            elif kind == "attention":
                made = nn.Linear(width, 3 * width)
            elif kind == "even":
                made = nn.ConvTranspose2d(width, width, 3, stride=2, padding=1, output_padding=1)
            elif kind == "shuffle":
                made = nn.Conv2d(width, 4 * width, 1)
            self.layers.append(made)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        before = x
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            x, before = self._one(kind, layer, x, before), x
        result: torch.Tensor = self.last(x)
        return result

    def _one(
        self, kind: str, layer: nn.Module, x: torch.Tensor, before: torch.Tensor
    ) -> torch.Tensor:
        small = min(x.shape[-2:]) < 8
        if kind in ("valid", "down", "half", "pool", "mirror") and small:
            return x
        if kind in ("up", "even", "shuffle") and max(x.shape[-2:]) > 40:
            return x
        if kind == "silu":
            return functional.silu(x)
        if kind == "inplace":
            y = x * 2
            y.add_(1).clamp_(-8, 8)
            return y
        if kind == "down":
            return layer(functional.pad(x, (0, 1, 0, 1)))
        if kind == "up":
            return functional.interpolate(x, scale_factor=2.0, mode="nearest")
        if kind == "skip":
            return x + layer(functional.silu(x))
        if kind == "join":
            other = before if before.shape == x.shape else x * 2
            return layer(torch.cat([x, other], dim=1))
        if kind == "attention":
            return x + self._attend(layer, x)
        if kind == "same pad":
            return layer(functional.pad(x, (2, 1, 3, 2), mode="replicate"))
        if kind == "mirror":
            return layer(functional.pad(x, (1, 2, 3, 2), mode="reflect"))
        if kind == "shuffle":
            return functional.pixel_shuffle(layer(x), 2)
        if kind == "pool":
            return functional.avg_pool2d(x, 2)
        if kind == "rms":
            return functional.normalize(x, dim=1) * 2
        if kind == "half":
            return x[:, :, 1:-1, 2:-1]
        return layer(x)

    def _attend(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        items, width, high, wide = x.shape
        flat = x.reshape(items, width, high * wide).transpose(1, 2)
        query, key, value = layer(flat).unsqueeze(1).chunk(3, dim=-1)
        seen = functional.scaled_dot_product_attention(query, key, value).squeeze(1)
        return seen.permute(0, 2, 1).reshape(x.shape)


class Causal(nn.Module):
    """Clips [B,3,T,H,W], frame by frame: each convolution sees the two frames before."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv3d(3, 4, (1, 3, 3), padding=(0, 1, 1))
        self.layers = nn.ModuleList(nn.Conv3d(4, 4, 3, padding=(0, 1, 1)) for _ in range(depth))
        self.last = nn.Conv3d(4, 3, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor | None] = [None] * len(self.layers)
        made = []
        for frame in range(x.shape[2]):
            y = self.first(x[:, :, frame : frame + 1])
            for at, layer in enumerate(self.layers):
                past = kept[at]
                if past is None:
                    past = y.new_zeros(*y.shape[:2], 2, *y.shape[3:])
                seen = torch.cat([past, y], dim=2)
                kept[at] = seen[:, :, -2:].clone()
                y = y + layer(functional.silu(functional.normalize(seen, dim=1)))
            y = functional.interpolate(
                y.squeeze(2), scale_factor=2.0, mode="nearest-exact"
            ).unsqueeze(2)
            made.append(self.last(y))
        return torch.cat(made, dim=2)
