"""A denoiser gets half as large when it is loaded: its layers in eight bits, with scales."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tightfit.errors import InputError
from tightfit.place.converting.scaling import convert
from tightfit.weigh.conversions import FLOATS, grid_of, scale_names

STORED = torch.float8_e4m3fn
SCALE = "weight_scale"
_LEAST = 1 << 12
"""Values of a weight below which it is not worth a layer of its own kind."""


def quantise(module: nn.Module) -> int:
    """Store the linear layers of its blocks in eight bits, each row with its own scale, for `fit`.

    What is outside of lists of blocks stays as it is: the ways in and out, times and norms, which
    weigh little. A layer then means ``weight.float() * weight_scale`` rounded once; nothing can be
    computed before the module is fitted. Returns how many layers that were.
    """
    found = [layer for name, layer in module.named_modules() if _is_in_block(name, layer)]
    for layer in found:
        weight = layer.weight.detach()
        most = weight.abs().amax(dim=1, keepdim=True).float()
        scale = torch.where(most > 0, most / torch.finfo(STORED).max, 1.0)
        layer.weight = nn.Parameter((weight / scale).to(STORED), requires_grad=False)
        layer.register_buffer(SCALE, scale)
    return len(found)


def widen(module: nn.Module, dtype: torch.dtype, *, blocks: bool = True) -> int:
    """The other way: what is stored in eight bits in `dtype`, without its scale.

    Without `blocks` their linear layers are left: pipelines ask a network for its dtype, and what
    is told is that of its first weight. Returns how many weights there were.
    """
    count = 0
    for name, layer in list(module.named_modules()):
        if not blocks and type(layer) is nn.Linear and _is_numbered(name):
            continue
        for own in [each for each, value in layer._parameters.items() if _is_stored(value)]:
            _widen(layer, own, dtype)
            count += 1
    return count


def _widen(layer: nn.Module, name: str, dtype: torch.dtype) -> None:
    stored: Any = layer._parameters[name]
    found = next((each for each in scale_names(name) if each in layer._buffers), None)
    scale = None if found is None else layer._buffers[found]
    grid = "tensor" if scale is None else grid_of(scale.shape, stored.shape)
    if grid is None:
        raise InputError(f"`{name}` has a scale of another shape than its own.")
    copy = torch.empty(stored.shape, dtype=dtype)
    convert(stored.detach(), copy, scale=scale, grid=grid)
    layer._parameters[name] = nn.Parameter(copy, requires_grad=False)
    if found is not None:
        del layer._buffers[found]
    bias = layer._parameters.get("bias")
    if name == "weight" and bias is not None and not _is_stored(bias):
        layer._parameters["bias"] = nn.Parameter(bias.detach().to(dtype), requires_grad=False)


def _is_stored(value: torch.Tensor | None) -> bool:
    return value is not None and value.dtype in (*FLOATS, torch.int8)


def _is_in_block(name: str, layer: nn.Module) -> bool:
    """A plain linear layer, stored in what is computed in, somewhere below a numbered one."""
    return (
        type(layer) is nn.Linear
        and layer.weight.numel() >= _LEAST
        and layer.weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and _is_numbered(name)
    )


def _is_numbered(name: str) -> bool:
    return any(word.isdecimal() for word in name.split(".")[:-1])
