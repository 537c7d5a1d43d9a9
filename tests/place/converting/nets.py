"""Networks whose weights are stored in eight bits, and what they are meant to be."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import nn

from tests.streaming import Case, Net
from tightfit.plan.streaming.pieces import Level
from tightfit.plan.streaming.residency import Residency
from tightfit.run.fitting.need import Call, order_of
from tightfit.run.fitting.placing import Weighed
from tightfit.weigh.conversions import Conversions

Scaling = Literal["none", "tensor", "rows", "column", "blocks", "int8"]
SCALINGS: tuple[Scaling, ...] = ("none", "tensor", "rows", "column", "blocks", "int8")
NAMES = {"tensor": "scale_weight", "blocks": "weight_scale_inv"}


def scale_of(kind: Scaling, rows: int, columns: int) -> torch.Tensor | None:
    """Of odd values, so that each rounding shows."""
    shapes = {
        "tensor": (),
        "rows": (rows,),
        "column": (rows, 1),
        "int8": (rows,),
        "blocks": (-(-rows // 128), -(-columns // 128)),
    }
    return None if kind == "none" else torch.rand(shapes[kind]) / 100 + 1e-3


def store(layer: nn.Linear, kind: Scaling) -> None:
    """In place: its weight in eight bits, with a scale of that kind."""
    rows, columns = layer.weight.shape
    dtype = torch.int8 if kind == "int8" else torch.float8_e4m3fn
    values = torch.randn(rows, columns) * (1 if kind == "none" else 30)
    layer.weight.requires_grad_(False).data = values.to(dtype)
    scale = scale_of(kind, rows, columns)
    if scale is not None:
        layer.register_buffer(NAMES.get(kind, "weight_scale"), scale)


def stored(net: nn.Module) -> nn.Module:
    """In place: each plain layer in another way; tables of its blocks too."""
    ways = iter(SCALINGS * 8)
    for part in net.modules():
        if isinstance(part, nn.Linear) and not hasattr(part, "parametrizations"):
            if part.weight.dtype.itemsize > 1:
                store(part, next(ways))
        elif isinstance(getattr(part, "table", None), nn.Parameter):
            table: Any = part.table
            table.requires_grad_(False).data = table.data.to(torch.float8_e5m2)
    return net


def meant(net: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy with the weights in `dtype` that are meant, worked out in float32."""
    found = copy.deepcopy(net)
    done: set[int] = set()
    for layer in Conversions.of(found).layers:
        for each in layer.weights:
            tensor, scale = each.tensor, None if each.scale is None else each.scale.tensor
            if id(tensor) in done:
                continue
            done.add(id(tensor))
            wide = tensor.detach().float()
            if scale is not None and each.grid == "blocks":
                factor = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
                wide = wide * factor[: wide.shape[0], : wide.shape[1]]
            elif scale is not None:
                wide = wide * scale.reshape(-1, *(1 for _ in wide.shape[1:]))
            used = each.used_in(dtype, tensor.dtype)
            tensor.requires_grad_(False).data = wide.to(used)
    return found


def network(
    kinds: tuple[int, ...] = (0, 1, 2, 3, 0),
    *,
    width: int = 160,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Net:
    """Blocks of all kinds with layers stored in all ways; the others in `dtype`."""
    torch.manual_seed(5)
    net = Net(width, kinds, tied=tied).eval().to(dtype)
    stored(net)
    return net


def case_of(net: nn.Module, *given: object) -> Case:
    """In the order of a call that is given these."""
    order = order_of(net, Call("forward", given, {}))
    assert order is not None
    return Case(net, order, Weighed.of(net, order))


def residency_of(
    case: Case, level: Level, *, stays: int = 0, slots: int = 2, dtype: torch.dtype
) -> Residency:
    """A bit of `stays` for each piece, and the room for conversion to `dtype`."""
    plain = case.everything(level, slots, lambda at: bool(stays >> at & 1))
    return Residency(plain.pieces, plain.stays, plain.ring, case.weighed.room(dtype).bytes)
