"""The one walk over a module's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import nn

DEPTH = 4
"""Containers within containers of a plain attribute that are looked into."""


class Kind(StrEnum):
    """Where a module keeps a tensor."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    ATTRIBUTE = "attribute"


@dataclass(frozen=True, eq=False)
class Held:
    """A tensor that a module holds.

    Attributes:
        path: from the root, such as ``decoder.conv_in.weight`` or ``_feat_map[3]``.
        owner: the module that holds it directly.
        name: the attribute of `owner` it is in, or under.
        steps: keys and indices below that attribute, outermost first.
        kind: how it is held.
        tensor: the tensor itself.
    """

    path: str
    owner: nn.Module
    name: str
    steps: tuple[Any, ...]
    kind: Kind
    tensor: torch.Tensor


def walk(module: nn.Module) -> Iterator[Held]:
    """Every tensor of `module` and its children; ties appear once per place they are held in.

    Plain attributes count too, also inside lists, tuples and dicts: that is where feature caches
    and position tables live.
    """
    for prefix, owner in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        for kind, table in ((Kind.PARAMETER, owner._parameters), (Kind.BUFFER, owner._buffers)):
            for name, tensor in table.items():
                if tensor is not None:
                    yield Held(f"{dot}{name}", owner, name, (), kind, tensor)
        for name, value in vars(owner).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            for steps, tensor in _inside(value, DEPTH):
                path = f"{dot}{name}" + "".join(f"[{step!r}]" for step in steps)
                yield Held(path, owner, name, steps, Kind.ATTRIBUTE, tensor)


def weights(module: nn.Module) -> Iterator[Held]:
    """Parameters and buffers; ties appear once per place they are held in."""
    return (held for held in walk(module) if held.kind is not Kind.ATTRIBUTE)


def identity(tensor: torch.Tensor) -> Any:
    """Equal for two tensors exactly when they are the same bytes in the same layout.

    Data pointers cannot tell: they are 0 for every tensor on a meta or virtual device. Storages
    cannot tell on the meta device either, where each tensor stands for itself.
    """
    inner = getattr(tensor, "payload", tensor)  # a wrapper's own storage is empty
    if inner.device.type == "meta":
        return id(tensor)
    return (
        inner.untyped_storage()._cdata,
        inner.storage_offset(),
        tuple(inner.shape),
        inner.stride(),
        inner.dtype,
    )


def weight_bytes(module: nn.Module, *, not_on: torch.device | None = None) -> int:
    """Bytes of all parameters and buffers, ties once; without those that lie on `not_on`."""
    sizes = {
        identity(held.tensor): held.tensor.nbytes
        for held in weights(module)
        if held.tensor.device != not_on
    }
    return sum(sizes.values())


def _inside(value: Any, depth: int) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield (), value
    elif depth and isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            for steps, tensor in _inside(item, depth - 1):
                yield (index, *steps), tensor
    elif depth and isinstance(value, dict):
        for key, item in value.items():
            for steps, tensor in _inside(item, depth - 1):
                yield (key, *steps), tensor
