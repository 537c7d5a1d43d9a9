"""Layers whose weights are more than one tensor, computing from all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

_aten = torch.ops.aten


class Code:
    """What a library keeps beside a packed weight: a table of 256 values, and their name."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table
        self.name = "table"


class Coded(torch.Tensor):
    """Looks like float32; each byte of ``_data`` is a place in the table of ``state``."""

    _data: torch.Tensor
    _scale: torch.Tensor
    state: Code
    seen: list[set[torch.device]]

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor, state: Code) -> Coded:
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=torch.float32, device=data.device
        )

    def __init__(self, data: torch.Tensor, scale: torch.Tensor, state: Code) -> None:
        self._data, self._scale, self.state = data, scale, state
        self.seen = []

    @property
    def inner(self) -> tuple[torch.Tensor, ...]:
        """All that it is made of."""
        return self._data, self._scale, self.state.table

    def values(self) -> torch.Tensor:
        """What it stands for; where everything was is written down."""
        self.seen.append({self.device, *(each.device for each in self.inner)})
        found: torch.Tensor = self.state.table[self._data.long()] * self._scale[:, None]
        return found

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        if func is _aten.detach.default:
            (shell,) = args
            return cls(shell._data.detach(), shell._scale.detach(), shell.state)
        if func not in (_aten.t.default, _aten.addmm.default, _aten.mm.default, _aten.mul.Tensor):
            raise NotImplementedError(f"{func} of a coded weight")  # pins and copies among them
        plain = [each.values() if isinstance(each, Coded) else each for each in args]
        result: torch.Tensor = func(*plain, **(kwargs or {}))
        return result


def coded(rows: int, columns: int) -> Coded:
    """Random places, scales and values."""
    data = torch.randint(0, 256, (rows, columns), dtype=torch.uint8)
    return Coded(data, torch.rand(rows) + 0.5, Code(torch.randn(256) / columns))


def four_bit(layer: nn.Linear) -> nn.Parameter:
    """A weight for `layer`, with a code of 16 values, and scales for rows within that."""
    packed = torch.randint(0, 256, (layer.weight.numel() // 2, 1), dtype=torch.uint8)
    weight = nn.Parameter(packed, requires_grad=False)
    state: Any = Code(torch.randn(16) / layer.in_features)
    state.below = Code(torch.rand(layer.out_features) + 0.5)
    state.shape = tuple(layer.weight.shape)
    held: Any = weight
    held.quant_state = state
    return weight


class FourBitLinear(nn.Linear):
    """Computes from such a weight; the layer has its state too, as those of bitsandbytes do."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__(columns, rows)
        self.weight = four_bit(self)
        self.quant_state = self.weight.quant_state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: Any = self.weight.quant_state
        both = torch.stack([self.weight.view(-1) >> 4, self.weight.view(-1) & 15], 1)
        values = state.table[both.long().view(state.shape)] * state.below.table[:, None]
        return functional.linear(x, values, self.bias)


class Layers(nn.Module):
    """Layers one after another; [B, width] to the same."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


def coded_layers(width: int, count: int) -> Layers:
    """Every weight is a `Coded`."""
    torch.manual_seed(6)
    layers: list[nn.Module] = [nn.Linear(width, width) for _ in range(count)]
    for layer in layers:
        layer.weight = nn.Parameter(coded(width, width), requires_grad=False)
    return Layers(layers).eval()


def four_bit_layers(width: int, count: int) -> Layers:
    """Every weight carries a state."""
    torch.manual_seed(7)
    return Layers([FourBitLinear(width, width) for _ in range(count)]).eval()
