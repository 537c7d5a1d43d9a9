"""Which tensor of a file is which of a module, and what becomes of those that are none of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from tightfit.errors import InputError
from tightfit.weigh.conversions import grid_of, has_own_way, scale_names
from tightfit.weigh.files.tensor_header import WHOLE_NUMBERS, TensorHeader
from tightfit.weigh.tensors import Held, Kind, weights

EIGHT_BITS = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8")
"""What may have a scale beside it."""
_SCALES = ("F64", "F32", "F16", "BF16")
_MARKER = "scaled_fp8"
"""Says in which eight bits a file is, which its tensors say themselves."""
_OF_INPUTS = ("input_scale", "scale_input")
"""For those who multiply in eight bits."""
_FORMATS = ("float8_e4m3fn", "float8_e5m2")
"""Of those that a layer's ``comfy_quant`` may name, those that are values and a scale."""


@dataclass(frozen=True)
class Match:
    """How a file goes with a module.

    Attributes:
        places: for each key, the parameters and buffers that take its tensor: more than one for
            those that are tied.
        scales: for each key of a scale, the module that has its weight, and its name there.
        left: keys that are not needed: scales of activations, and marks.
    """

    places: Mapping[str, tuple[Held, ...]]
    scales: Mapping[str, tuple[nn.Module, str]]
    left: tuple[str, ...]


def match(
    module: nn.Module, tensors: Iterable[TensorHeader], *, read: Callable[[str], torch.Tensor]
) -> Match:
    """Every key of a file has a place in `module`, and every weight of it a key.

    `read` gives the tensor of a key, for the few that have to be looked into. Raises `InputError`
    that names the key for one that has no place, for a shape or type that does not go with the
    module, and for what is missing.
    """
    return _Matching(module, tensors, read).match()


class _Matching:
    def __init__(
        self,
        module: nn.Module,
        tensors: Iterable[TensorHeader],
        read: Callable[[str], torch.Tensor],
    ) -> None:
        self._name = type(module).__name__
        self._file = {each.name: each for each in tensors}
        self._read = read
        helds = list(weights(module))
        self._scaled = {
            f"{_dot(held.place)}{name}": (held, name)
            for held in helds
            if not has_own_way(held.owner)
            for name in scale_names(held.name)
        }
        self._helds = [held for held in helds if held.path not in self._scaled]
        self._by_path = {held.path: held for held in self._helds}
        self._given = {held.place for held in self._helds if held.path in self._file}

    def match(self) -> Match:
        places: dict[str, tuple[Held, ...]] = {}
        scales: dict[str, tuple[nn.Module, str]] = {}
        left: list[str] = []
        for key, header in self._file.items():
            held = self._by_path.get(key)
            if held is not None and _is_kept(held):
                self._check(held, header)
                places[key] = tuple(h for h in self._helds if h.tensor is held.tensor)
            elif key in self._scaled and self._scaled[key][0].path in self._file:
                scales[key] = self._scale(key, *self._scaled[key])
            elif self._is_left(key):
                left.append(key)
            else:
                raise InputError(
                    f"`{key}` in the file is nothing that `{self._name}` has, and no scale of a "
                    "weight by any name that is known: it cannot be told what it is for."
                )
        self._check_all_there(places)
        return Match(places, scales, tuple(left))

    def _check(self, held: Held, header: TensorHeader) -> None:
        """A weight of eight bits may take the place of one of any type."""
        if header.shape != tuple(held.tensor.shape):
            raise InputError(
                f"`{header.name}` is {list(header.shape)} in the file, and "
                f"{list(held.tensor.shape)} in `{self._name}`."
            )
        if held.tensor.is_floating_point() and header.dtype in WHOLE_NUMBERS:
            scaled = any(f"{_dot(held.place)}{n}" in self._file for n in scale_names(held.name))
            if header.dtype != "I8" or not scaled or has_own_way(held.owner):
                raise InputError(
                    f"`{header.name}` is {header.dtype} in the file without a scale that is known "
                    "beside it: it cannot be told which values it stands for."
                )

    def _scale(self, key: str, held: Held, name: str) -> tuple[nn.Module, str]:
        scale, weight = self._file[key], self._file[held.path]
        grid = grid_of(torch.Size(scale.shape), torch.Size(weight.shape))
        if grid is None or scale.dtype not in _SCALES or weight.dtype not in EIGHT_BITS:
            raise InputError(
                f"`{key}`, {scale.dtype}{list(scale.shape)}, cannot be the scale of "
                f"`{held.path}`, {weight.dtype}{list(weight.shape)}."
            )
        others = [n for n in scale_names(held.name) if f"{_dot(held.place)}{n}" in self._file]
        if len(others) > 1:
            raise InputError(f"`{held.path}` has several scales in the file: {', '.join(others)}.")
        return held.owner, name

    def _is_left(self, key: str) -> bool:
        place, _, name = key.rpartition(".")
        if name == _MARKER:
            return True
        if name == "comfy_quant" and place in self._given:
            self._check_format(key)
            return True
        return place in self._given and name in _OF_INPUTS

    def _check_format(self, key: str) -> None:
        try:
            told = json.loads(bytes(self._read(key).flatten().tolist()))
            form = told.get("format")
        except (ValueError, AttributeError, TypeError):
            form = None
        if form not in _FORMATS:
            raise InputError(
                f"`{key}` in the file says that its layer is stored as `{form}`, which cannot be "
                f"read: {', '.join(_FORMATS)} can."
            )

    def _check_all_there(self, places: Mapping[str, tuple[Held, ...]]) -> None:
        given = {id(held.tensor) for each in places.values() for held in each}
        for held in self._helds:
            if id(held.tensor) in given:
                continue
            if _is_kept(held):
                raise InputError(f"`{held.path}` of `{self._name}` is not in the file.")
            if held.tensor.device.type == "meta":
                raise InputError(
                    f"`{held.path}` of `{self._name}` is in no file, and on the meta device it has "
                    "no values: make the module on the host."
                )


def _is_kept(held: Held) -> bool:
    """Whether files have it."""
    temporary = held.owner._non_persistent_buffers_set
    return held.kind is Kind.PARAMETER or held.name not in temporary


def _dot(place: str) -> str:
    return f"{place}." if place else ""
