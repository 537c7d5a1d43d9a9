"""Packed weights as libraries keep them: shells that wrap others, parameters that carry others."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_aten = torch.ops.aten
_MOVES = (_aten.detach.default, _aten._to_copy.default, _aten.clone.default)


class Shell(torch.Tensor):
    """Looks like `shape` in bfloat16; its bytes lie in ``_data`` and ``_scale``."""

    _data: torch.Tensor
    _scale: torch.Tensor

    @staticmethod
    def __new__(
        cls, data: torch.Tensor, scale: torch.Tensor, shape: tuple[int, ...], **more: Any
    ) -> Shell:
        return torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=torch.bfloat16, device=data.device
        )

    def __init__(
        self, data: torch.Tensor, scale: torch.Tensor, shape: tuple[int, ...], **more: Any
    ) -> None:
        del shape
        self._data = data
        self._scale = scale
        vars(self).update(more)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        named = {name: value for name, value in (kwargs or {}).items() if name != "dtype"}
        if func not in _MOVES:
            raise NotImplementedError(func)
        shell = args[0]
        more = {name: value for name, value in vars(shell).items() if not name.startswith("_")}
        data, scale = func(shell._data, **named), func(shell._scale, **named)
        return cls(data, scale, tuple(shell.shape), **more)


class FlatShell(Shell):
    """A shell that tells what it wraps in torch's own way."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["_data", "_scale"], None


class State:
    """What a library keeps beside a packed weight."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


def four_bit(rows: int, columns: int, *, kind: type[Shell] = FlatShell, **more: Any) -> Shell:
    """Two values in each byte, and a scale for each 64 values."""
    data = torch.zeros(rows, columns // 2, dtype=torch.uint8)
    scale = torch.ones(rows, columns // 64, dtype=torch.bfloat16)
    return kind(data, scale, (rows, columns), **more)


def four_bit_size(rows: int, columns: int) -> int:
    """Bytes of `four_bit`, worked out by hand."""
    return rows * columns // 2 + rows * columns // 64 * 2


def with_quant_state(rows: int, columns: int) -> nn.Parameter:
    """A flat uint8 parameter whose scales, code book and shape lie in a plain object."""
    weight = nn.Parameter(
        torch.zeros(rows * columns // 2, 1, dtype=torch.uint8), requires_grad=False
    )
    inner = State(absmax=torch.zeros(rows * columns // 64 // 256), code=torch.zeros(256))
    weight.quant_state = State(
        absmax=torch.zeros(rows * columns // 64, dtype=torch.uint8),
        code=torch.zeros(16),
        state2=inner,
        shape=torch.Size((rows, columns)),
        dtype=torch.float16,
    )
    return weight


def blocks_of_32(rows: int, columns: int) -> nn.Parameter:
    """A GGUF-like parameter: 32 values in 34 bytes, so its shape is not that of the weight."""
    packed = torch.zeros(rows, columns // 32 * 34, dtype=torch.uint8)
    weight = nn.Parameter(packed, requires_grad=False)
    weight.quant_type = 8
    weight.quant_shape = (rows, columns)
    return weight
