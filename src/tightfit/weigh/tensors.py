"""The one walk over a module's tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from tightfit.weigh.packed import DEPTH, converted_bytes, data_parts, elements, is_packed, parts
from tightfit.weigh.tally import Tally, stored_bytes

__all__ = [
    "DEPTH",
    "Held",
    "Kind",
    "Tally",
    "converted_bytes",
    "elements",
    "identity",
    "is_packed",
    "parts",
    "recomputed",
    "stored_bytes",
    "walk",
    "weight_bytes",
    "weights",
]

_PARAMETRIZATIONS = "parametrizations"
_TABLES = ("_parameters", "_buffers", "_modules")
_PLAIN = frozenset((bool, int, float, str, type(None)))
_HOLDERS = frozenset((dict, OrderedDict, list, tuple, set))
"""Most attributes of modules are plain or empty, such as a dozen tables of hooks each."""
_ORIGINALS = ("_g", "_v", "_orig")
"""What old-style weight norm, spectral norm and pruning append to the name of a weight."""


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
        place: path of `owner`, empty for the root.
    """

    path: str
    owner: nn.Module
    name: str
    steps: tuple[Any, ...]
    kind: Kind
    tensor: torch.Tensor
    place: str = ""

    @property
    def leaf(self) -> str:
        """Path of the module whose call uses it: for a parametrization, the module it is put on."""
        above, inside, _ = f".{self.place}.".partition(f".{_PARAMETRIZATIONS}.")
        return above[1:] if inside else self.place

    @property
    def recomputed(self) -> bool:
        """Whether it is made anew from originals before each call, as old-style weight norm does.

        (A parametrization keeps no such copy: it is made at each access.)
        """
        originals = (f"{self.name}{ending}" for ending in _ORIGINALS)
        return self.kind is Kind.ATTRIBUTE and any(o in self.owner._parameters for o in originals)


def walk(module: nn.Module) -> Iterator[Held]:
    """Every tensor of `module` and its children; ties appear once per place they are held in.

    Plain attributes count too, also inside lists, tuples and dicts: that is where feature caches
    and position tables live.
    """
    for prefix, owner in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        yield from _registered(prefix, owner)
        for name, value in vars(owner).items():
            kind_of = type(value)
            if kind_of in _PLAIN or (kind_of in _HOLDERS and not value) or name in _TABLES:
                continue
            for steps, tensor in _inside(value, DEPTH):
                path = f"{dot}{name}" + "".join(f"[{step!r}]" for step in steps)
                yield Held(path, owner, name, steps, Kind.ATTRIBUTE, tensor, prefix)


def weights(module: nn.Module) -> Iterator[Held]:
    """Parameters and buffers; ties appear once per place they are held in."""
    for prefix, owner in module.named_modules():
        yield from _registered(prefix, owner)


def _registered(prefix: str, owner: nn.Module) -> Iterator[Held]:
    """Parameters and buffers of one module, without its children."""
    dot = f"{prefix}." if prefix else ""
    for kind, table in ((Kind.PARAMETER, owner._parameters), (Kind.BUFFER, owner._buffers)):
        for name, tensor in table.items():
            if tensor is not None:
                yield Held(f"{dot}{name}", owner, name, (), kind, tensor, prefix)


def recomputed(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights that `module` itself makes anew from originals, each with its largest original.

    The copy has the shape of that original (of weight norm's direction, of spectral norm's and
    pruning's original), lives while the module runs, and is part of no weights.
    """
    for name, child in getattr(module, _PARAMETRIZATIONS, nn.Module()).named_children():
        if isinstance(child, ParametrizationList):
            kept = [*child._parameters.values(), *child._buffers.values()]
            yield name, max((original for original in kept if original is not None), key=elements)
    for name, value in vars(module).items():
        if isinstance(value, torch.Tensor):
            held = Held(name, module, name, (), Kind.ATTRIBUTE, value)
            if held.recomputed:
                yield name, value


def identity(tensor: torch.Tensor) -> Any:
    """Equal for two tensors exactly when they are the same bytes in the same layout.

    Data pointers cannot tell: they are 0 for every tensor on a meta or virtual device. Storages
    cannot tell on the meta device either, where each tensor stands for itself. Shells are what
    they wrap; what a tensor only carries along does not count.
    """
    if is_lazy(tensor):
        return id(tensor)
    pieces = tuple(_piece(part) for part in data_parts(tensor))
    return pieces[0] if len(pieces) == 1 else (tuple(tensor.shape), *pieces)


def weight_bytes(module: nn.Module, *, not_on: torch.device | None = None) -> int:
    """Bytes of all parameters and buffers, ties once; without those that lie on `not_on`."""
    tally = Tally()
    return sum(tally.add(held.tensor) for held in weights(module) if held.tensor.device != not_on)


def _piece(part: torch.Tensor) -> Any:
    if part.device.type == "meta" or part.layout is not torch.strided:
        return id(part)
    return (
        part.untyped_storage()._cdata,
        part.storage_offset(),
        tuple(part.shape),
        part.stride(),
        part.dtype,
    )


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
