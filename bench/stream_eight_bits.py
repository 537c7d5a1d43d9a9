"""Linear layers stored in eight bits with a scale, and a plain way to run them where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tightfit.place.converting.scaling import convert

STORED = torch.float8_e4m3fn
SCALE = "weight_scale"


def store(module: nn.Module) -> None:
    """The weights of all linear layers in eight bits, each with the scale that uses their range.

    The module is as `tightfit.load_weights` leaves one whose file has such weights.
    """
    for layer in _layers(module):
        weight = layer.weight.detach()
        most = weight.abs().amax().float()
        scale = torch.where(most > 0, most / torch.finfo(STORED).max, 1.0)
        layer.weight = nn.Parameter((weight / scale).to(STORED), requires_grad=False)
        layer.register_buffer(SCALE, scale)


@contextmanager
def converting(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """While inside, a layer that is stored so has its weight in `dtype` while it is called.

    The copy is made for each call and let go after it; other layers are left alone.
    """
    handles = []
    for layer in _layers(module):
        if layer.weight.dtype == STORED:
            handles.append(layer.register_forward_pre_hook(_Widened(layer, dtype)))
            handles.append(layer.register_forward_hook(_put_back(layer), always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Widened:
    """Before a call: the weight as it is meant."""

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        self.stored, self.dtype = layer.weight, dtype

    def __call__(self, layer: Any, _: object) -> None:
        copy = torch.empty(self.stored.shape, dtype=self.dtype, device=self.stored.device)
        convert(self.stored.detach(), copy, scale=getattr(layer, SCALE), grid="tensor")
        layer.weight = nn.Parameter(copy, requires_grad=False)


def _put_back(layer: nn.Linear) -> Any:
    stored = layer.weight

    def put_back(called: Any, *_: object) -> None:
        called.weight = stored

    return put_back


def _layers(module: nn.Module) -> list[nn.Linear]:
    return [part for part in module.modules() if isinstance(part, nn.Linear)]
