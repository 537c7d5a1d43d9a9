"""A denoiser gets half as large when it is loaded: its layers in eight bits, with scales."""

from __future__ import annotations

import torch
from torch import nn

from tightfit.place.converting.scaling import convert
from tightfit.weigh.conversions import FLOATS, grid_of

STORED = torch.float8_e4m3fn
_SCALE = "weight_scale"
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
        layer.register_buffer(_SCALE, scale)
    return len(found)


def widen(module: nn.Module, dtype: torch.dtype) -> int:
    """The other way: layers that are stored in eight bits in `dtype`. Returns how many were."""
    count = 0
    for layer in list(module.modules()):
        if not isinstance(layer, nn.Linear) or layer.weight.dtype not in (*FLOATS, torch.int8):
            continue
        stored = layer.weight.detach()
        names = [name for name in layer._buffers if name.startswith(("weight_scale", "scale_w"))]
        scale = layer._buffers[names[0]] if names else None
        grid = grid_of(scale.shape, stored.shape) if scale is not None else "tensor"
        assert grid is not None
        copy = torch.empty(stored.shape, dtype=dtype)
        convert(stored, copy, scale=scale, grid=grid)
        layer.weight = nn.Parameter(copy, requires_grad=False)
        for name in names:
            del layer._buffers[name]
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias.detach().to(dtype), requires_grad=False)
        count += 1
    return count


def _is_in_block(name: str, layer: nn.Module) -> bool:
    """A plain linear layer, stored in what is computed in, somewhere below a numbered one."""
    return (
        type(layer) is nn.Linear
        and layer.weight.numel() >= _LEAST
        and layer.weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and any(word.isdecimal() for word in name.split(".")[:-1])
    )
