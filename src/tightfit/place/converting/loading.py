"""A module takes the weights of a file as they are stored there, with their scales."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from tightfit.errors import InputError
from tightfit.place.converting.matching import Match, match
from tightfit.place.packing.packed_file import PackedFile
from tightfit.weigh.conversions import has_own_way, scale_names
from tightfit.weigh.files.headers import read_header
from tightfit.weigh.files.packed_file import is_packed
from tightfit.weigh.files.safetensors_header import read_safetensors
from tightfit.weigh.files.safetensors_layout import read_layout
from tightfit.weigh.tensors import Held, Kind, weights


def load(module: nn.Module, path: Path) -> Match:
    """Nothing of `module` is changed before all of the file at `path` has its place.

    See `tightfit.load_weights`.
    """
    with ExitStack() as stack:
        files = _Files(path, stack)
        found = match(module, files.headers.values(), read=files.tensor)
        tensors = {key: files.tensor(key) for key in (*found.places, *found.scales)}
    for held in _old_scales(module):
        del (held.owner._buffers if held.kind is Kind.BUFFER else held.owner._parameters)[held.name]
    for key, helds in found.places.items():
        _give(helds, tensors[key])
    for key, (owner, name) in found.scales.items():
        owner.register_buffer(name, tensors[key])
    return found


class _Files:
    """The tensors of a file, of the shards of an index, or of a folder, by their names."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        header = read_header(path)
        if header.format != "safetensors":
            raise InputError(f"{path} is {header.format}: weights are loaded from safetensors.")
        self.headers = {}
        self._opened: dict[str, Any] = {}
        for file in header.files:
            packed = is_packed(read_layout(file).metadata)
            try:
                opened: Any = (
                    PackedFile(file)
                    if packed
                    else stack.enter_context(safe_open(str(file), framework="pt"))
                )
            except (OSError, SafetensorError) as error:
                raise InputError(f"Cannot read {file}: {error}.") from None
            for each in read_safetensors(file).tensors:
                self.headers[each.name] = each
                self._opened[each.name] = opened

    def tensor(self, name: str) -> torch.Tensor:
        """Its pages are read when they are used, unless they are packed."""
        opened = self._opened[name]
        if isinstance(opened, PackedFile):
            return opened.tensor(name)
        found: torch.Tensor = opened.get_tensor(name)
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
