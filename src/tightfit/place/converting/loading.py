"""A module takes the weights of a file as they are stored there, with their scales."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.place.converting.matching import Match, match
from tightfit.place.packing.stored_files import StoredFiles
from tightfit.weigh.conversions import has_own_way, scale_names
from tightfit.weigh.tensors import Held, Kind, weights


def load(module: nn.Module, path: Path) -> Match:
    """Nothing of `module` is changed before all of the file at `path` has its place.

    See `tightfit.load_weights`.
    """
    with ExitStack() as stack:
        files = StoredFiles(path, stack)
        found = match(module, files.headers.values(), read=files.tensor)
        tensors = {key: files.tensor(key) for key in (*found.places, *found.scales)}
    for held in _old_scales(module):
        del (held.owner._buffers if held.kind is Kind.BUFFER else held.owner._parameters)[held.name]
    for key, helds in found.places.items():
        _give(helds, tensors[key])
    for key, (owner, name) in found.scales.items():
        owner.register_buffer(name, tensors[key])
    return found


def _old_scales(module: nn.Module) -> list[Held]:
    """Of weights that were loaded before."""
    helds = list(weights(module))
    owned = {(id(held.owner), held.name): held for held in helds}
    return [
        owned[id(held.owner), name]
        for held in helds
        if not has_own_way(held.owner)
        for name in scale_names(held.name)
        if (id(held.owner), name) in owned
    ]


def _give(helds: tuple[Held, ...], value: torch.Tensor) -> None:
    """One tensor for all places of a tie; parameters on the host stay the objects they are."""
    first = helds[0]
    if first.kind is Kind.BUFFER:
        for held in helds:
            held.owner._buffers[held.name] = value
        return
    parameter: Any = first.tensor
    wants_grad = parameter.requires_grad and value.dtype.itemsize > 1
    if parameter.device.type == "meta":
        parameter = nn.Parameter(value, requires_grad=wants_grad)
    else:
        parameter.requires_grad_(False)
        parameter.data = value
        parameter.requires_grad_(wants_grad)
    for held in helds:
        held.owner._parameters[held.name] = parameter
