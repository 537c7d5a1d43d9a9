"""Whether a LoRA is one of a module's, told by names and shapes before anything is loaded."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.errors import InputError
from tightfit.weigh.files.headers import read_header

_FILE = "pytorch_lora_weights.safetensors"
"""What diffusers calls the file in a folder, if nobody says otherwise."""
_FACTOR = re.compile(
    r"(?P<path>.+)\.(?P<kind>lora_(?:embedding_)?[AB]|lora_magnitude_vector)"
    r"(?:\.[^.]+)??(?:\.(?P<leaf>weight|bias))?"
)
_ELSEWHERE = ("lora_controlnet", ".lokr_")
"""What tells of other kinds of adapters, whose names say less."""
_NAMED = 3
"""Faults that a message names."""

Shape = tuple[int, ...]


def check_lora(
    module: nn.Module, lora: Any, *, prefix: str | None = None, weight_name: str | None = None
) -> None:
    """Raise `InputError`, naming keys and shapes, for a LoRA that is not one of `module`'s.

    Args:
        module: fitted or not, with adapters or without.
        lora: a state dict, a safetensors file, or a folder with one.
        prefix: of its keys, those that are meant: what stands before the first dot. None is all.
        weight_name: of the file in a folder.

    Looked at are the names of PEFT: ``PATH.lora_A.weight`` is [rank, in], ``PATH.lora_B.weight``
    [out, rank]; of a convolution the first has its kernel too. Other spellings are left to whoever
    converts them, and so is what has to be downloaded first.
    """
    shapes = _shapes(lora, weight_name or _FILE)
    if shapes is None:
        return
    if prefix is not None:
        start = f"{prefix}."
        shapes = {k.removeprefix(start): s for k, s in shapes.items() if k.startswith(start)}
    names = [key for key in shapes if not key.endswith(".alpha")]
    others = any(mark in key for key in names for mark in _ELSEWHERE)
    if others or not names or ".lora_" not in names[0] or ".lora_down" in names[0]:
        return
    faults = list(_faults(dict(module.named_modules()), {key: shapes[key] for key in names}))
    if faults:
        more = f" (and {len(faults) - _NAMED} more)" if len(faults) > _NAMED else ""
        named = "; ".join(faults[:_NAMED])
        raise InputError(
            f"The LoRA is not one of `{type(module).__name__}`: {named}{more}. Nothing was loaded."
        )


def check_loading(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Of what ``module.load_lora_adapter`` is given."""
    names = ("pretrained_model_name_or_path_or_dict", "prefix")
    given = {"prefix": "transformer", **dict(zip(names, args, strict=False)), **kwargs}
    prefix, weight_name = given["prefix"], given.get("weight_name")
    check_lora(module, given.get(names[0]), prefix=prefix, weight_name=weight_name)


def _shapes(lora: Any, weight_name: str) -> dict[str, Shape] | None:
    """Of all its tensors; None where they are not to be had without a download."""
    if isinstance(lora, Mapping):
        return {k: tuple(v.shape) for k, v in lora.items() if isinstance(v, torch.Tensor)}
    try:
        path = Path(lora)
    except TypeError:
        return None
    path = path / weight_name if path.is_dir() else path
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    return {each.name: tuple(each.shape) for each in read_header(path).tensors}


def _faults(parts: Mapping[str, nn.Module], shapes: Mapping[str, Shape]) -> Iterator[str]:
    """In words."""
    factors: dict[str, dict[str, tuple[str, Shape]]] = defaultdict(dict)
    for key, shape in shapes.items():
        found = _FACTOR.fullmatch(key)
        path = found["path"] if found else ""
        if found is None:
            yield f"`{key}` {_sized(shape)} is no part of a LoRA"
        elif _sides(parts.get(path)) is None:
            yield f"`{key}` {_sized(shape)} is for a layer `{path}` that the module has not"
        elif found["leaf"] != "bias":
            factors[path][found["kind"]] = (key, shape)
    for path, each in factors.items():
        sides = _sides(parts[path])
        assert sides is not None
        yield from _misfits(path, each, *sides)


def _misfits(
    path: str, each: Mapping[str, tuple[str, Shape]], wide: Shape, out: int
) -> Iterator[str]:
    """Of one layer, that takes [rank, *wide] and [out, rank, ...]."""
    one, two = (next((v for k, v in each.items() if k.endswith(s)), None) for s in ("_A", "_B"))
    if one is None or two is None:
        key, shape = one or two or next(iter(each.values()))
        missing = "lora_B" if two is None else "lora_A"
        yield f"`{key}` {_sized(shape)} has no `{missing}` beside it"
        return
    (key, shape), (other, below) = one, two
    rank = below[1] if len(below) > 1 else None
    if shape[1:] != wide:
        yield f"`{key}` is {_sized(shape)}, and `{path}` takes {_sized((rank or 'rank', *wide))}"
    elif rank != shape[0]:
        yield f"`{other}` is {_sized(below)}, and the rank is {shape[0]} by `{key}`"
    if below[:1] != (out,):
        yield f"`{other}` is {_sized(below)}, and `{path}` gives {out}"


def _sides(part: nn.Module | None) -> tuple[Shape, int] | None:
    """Of a layer that can have a LoRA: what the first factor has beside its rank; outputs."""
    layer: Any = part
    while isinstance(getattr(layer, "base_layer", None), nn.Module):
        layer = layer.base_layer
    sides = getattr(layer, "in_features", None), getattr(layer, "out_features", None)
    if isinstance(sides[0], int) and isinstance(sides[1], int):
        return (sides[0],), sides[1]
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() < 2:
        return None
    if isinstance(layer, nn.Embedding):
        return (layer.num_embeddings,), layer.embedding_dim
    return tuple(weight.shape[1:]), weight.shape[0]


def _sized(shape: tuple[object, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
