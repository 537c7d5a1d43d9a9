"""A network of a pipeline from one file: in its class's own names, an original's, or GGUF."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.adapters.libraries import class_named
from tightfit.adapters.loading.eight_bits import widen
from tightfit.adapters.loading.random_weights import unfilled
from tightfit.adapters.packed import packed_headers, packed_tensors
from tightfit.errors import InputError
from tightfit.place.converting.loading import load
from tightfit.weigh.conversions import scale_names
from tightfit.weigh.files.headers import read_header
from tightfit.weigh.files.recognise import recognise, speaks
from tightfit.weigh.files.tensor_header import Header

DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}
_EIGHT_BITS = ("F8_E4M3", "F8_E5M2", "I8")
_BESIDE = ("input_scale", "scale_input", "comfy_quant", "scaled_fp8")
"""What may lie in a file and is no weight."""


def header_of(path: Path) -> Header:
    """Of a file or a folder that is to be loaded. Raises `InputError` in the words for that."""
    try:
        return read_header(path)
    except InputError as error:
        raise InputError(str(error).replace("Cannot weigh", "Cannot load", 1)) from None


def main_dtype(path: Path) -> torch.dtype:
    """What most of the weights at `path` are stored in, of those that can be computed in.

    Where there are none, as in a file that is all fp8 or GGUF, it is bfloat16. Raises `InputError`
    for what cannot be read.
    """
    header = header_of(path)
    shares: dict[str, int] = {}
    for tensor in header.tensors:
        if tensor.dtype in DTYPES and not _is_scale(tensor.name):
            shares[tensor.dtype] = shares.get(tensor.dtype, 0) + tensor.elements
    if header.format == "gguf" or not any(shares.values()):
        return torch.bfloat16
    return DTYPES[max(shares, key=shares.__getitem__)]


def _is_scale(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last in (*_BESIDE, *scale_names("weight"))


def in_eight_bits(header: Header) -> bool:
    """Whether weights are stored as eight-bit values."""
    return header.format != "gguf" and any(each.dtype in _EIGHT_BITS for each in header.tensors)


def check_file(path: Path, outline: nn.Module, *, what: str, base: str | None = None) -> None:
    """By its header alone: whether `path` can hold the network that `outline` shows.

    `what` names it for people; `base` is the architecture by name, where it is known. Raises
    `InputError` that tells what the file holds instead, or which tensor does not go with it.
    """
    header = header_of(path)
    class_name = type(outline).__name__
    spoken = speaks(header)
    if spoken is not None:
        members = spoken.family.members.values()
        if class_name not in {known.class_name for known in members}:
            one = recognise(header) or next(iter(members))
            raise InputError(
                f"`{path}` holds a {one.class_name} ({one.name}), and {what} is a {class_name}: "
                "take the file of that architecture, or another base."
            )
    if _has_own_names(header, outline):
        if header.format == "safetensors":
            _check_own(path, header, outline, what)
        return
    known = recognise(header)
    if known is not None and base is not None and known.name != base:
        raise InputError(
            f"`{path}` holds {known.name}, and {what} is {base}: take the file of that "
            "architecture, or another base."
        )
    if spoken is None or not _converts(class_name):
        raise InputError(
            f"`{path}` has no keys of a {class_name}, which {what} is: its first is "
            f"`{header.tensors[0].name if header.tensors else 'none'}`."
        )


def load_file(
    cls: Any, config: dict[str, Any], path: Path, *, dtype: torch.dtype | None, library: str
) -> nn.Module:
    """The network of `cls` with the weights of the file at `path`, as stored or in `dtype`.

    Weights in eight bits stay as they are, with their scales. Raises what the loaders raise.
    """
    header = header_of(path)
    if header.format == "gguf":
        return _from_original(cls, config, path, dtype or torch.bfloat16, gguf=True)
    with unfilled():
        module: nn.Module = (
            cls(cls.config_class.from_dict(config))
            if library == "transformers"
            else cls.from_config(config)
        )
    if library == "transformers":
        module.tie_weights()  # type: ignore[operator]
    if _has_own_names(header, module):
        load(module, path)
        if in_eight_bits(header):
            widen(module, dtype or main_dtype(path), blocks=False)
        return module
    if library == "transformers":
        return _from_transformers(cls, config, path, dtype)
    return _from_original(cls, config, path, dtype or main_dtype(path), gguf=False)


def _from_transformers(
    cls: Any, config: dict[str, Any], path: Path, dtype: torch.dtype | None
) -> nn.Module:
    """In older names of the class, which its library knows."""
    module, told = cls.from_pretrained(
        None,
        config=cls.config_class.from_dict(config),
        state_dict=packed_tensors(path),
        dtype=dtype or main_dtype(path),
        output_loading_info=True,
    )
    refuse_missing(str(path), told)
    made: nn.Module = module
    return made


def refuse_missing(where: str, told: Any) -> None:
    """What a loader could not find would be noise. Raises `InputError` that names it."""
    missing = sorted(told.get("missing_keys") or ())
    if missing:
        raise InputError(
            f"Cannot load {where}: {len(missing)} of its tensors are not there, such as "
            f"`{missing[0]}`."
        )


def _from_original(
    cls: Any, config: dict[str, Any], path: Path, dtype: torch.dtype, *, gguf: bool
) -> nn.Module:
    """By diffusers, which converts the names; it finds the configuration in a folder."""
    given: Any = str(path)
    if not gguf and packed_headers(path) is not None:
        given = packed_tensors(path)
    more: dict[str, Any] = {}
    if gguf:
        more["quantization_config"] = class_named("diffusers", "GGUFQuantizationConfig")(
            compute_dtype=dtype
        )
    with tempfile.TemporaryDirectory() as folder:
        with torch.device("meta"):
            cls.from_config(config).save_config(folder)
        module: nn.Module = cls.from_single_file(
            given, config=folder, torch_dtype=dtype, local_files_only=True, **more
        )
    bare = [name for name, tensor in module.state_dict().items() if tensor.device.type == "meta"]
    if bare:
        raise InputError(
            f"Cannot load {path}: {len(bare)} tensors of a {cls.__name__} are not there, such as "
            f"`{bare[0]}`."
        )
    return module


def _has_own_names(header: Header, module: nn.Module) -> bool:
    """Whether a file speaks as the class does: most of its keys are keys of the module."""
    own = module.state_dict().keys()
    shared = sum(tensor.name in own for tensor in header.tensors)
    return 2 * shared > min(len(own), len(header.tensors)) > 0


def _check_own(path: Path, header: Header, outline: nn.Module, what: str) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in outline.state_dict().items()}
    stored = header.by_name
    for name, shape in wanted.items():
        tensor = stored.get(name)
        if tensor is not None and tensor.shape != shape:
            raise InputError(
                f"`{path}` is of another architecture than {what}: its `{name}` is "
                f"{list(tensor.shape)}, where {list(shape)} is needed."
            )
    beside = {scale for name in wanted for scale in _scales_of(name)}
    strange = [
        name
        for name in stored
        if name not in wanted and name not in beside and name.rpartition(".")[2] not in _BESIDE
    ]
    if strange:
        raise InputError(
            f"`{path}` is of another architecture than {what}: it has `{strange[0]}`, which a "
            f"{type(outline).__name__} of that size has not."
        )
    tied = {id(outline.get_parameter(n)) for n in wanted if n in stored and _is_weight(outline, n)}
    missing = [
        name
        for name in wanted
        if name not in stored
        and name not in header.ties
        and not (_is_weight(outline, name) and id(outline.get_parameter(name)) in tied)
    ]
    if missing:
        raise InputError(
            f"`{path}` is not whole: {len(missing)} tensors of {what} are not in it, such as "
            f"`{missing[0]}`."
        )


def _scales_of(name: str) -> list[str]:
    place, _, last = name.rpartition(".")
    return [f"{place}.{scale}" if place else scale for scale in scale_names(last)]


def _is_weight(module: nn.Module, name: str) -> bool:
    place, _, last = name.rpartition(".")
    return last in module.get_submodule(place)._parameters


def _converts(class_name: str) -> bool:
    """Whether diffusers knows the names of original checkpoints of that class."""
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    return class_name in SINGLE_FILE_LOADABLE_CLASSES
