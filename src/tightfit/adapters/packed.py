"""What `tightfit pack` wrote, as models of diffusers and transformers: the original's very bits.

Their own loaders see bytes instead of weights. Here the class is built without weights, as these
loaders build it, and given the tensors one by one as they are unpacked, under the rules of its
library for names and dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.errors import InputError
from tightfit.place.packing.packed_file import DTYPES
from tightfit.place.packing.stored_files import StoredFiles
from tightfit.weigh.files.headers import read_header
from tightfit.weigh.files.packed_file import is_packed
from tightfit.weigh.files.safetensors_layout import read_layout
from tightfit.weigh.files.tensor_header import TensorHeader


def packed_headers(path: Path) -> Mapping[str, TensorHeader] | None:
    """Of the tensors that were packed in the file or folder at `path`; None if nothing is packed.

    Pickles that are allowed count as packed: here only their tensors are read.

    Raises `InputError` where it says that it is packed, and is damaged or of a later version.
    """
    if not _says_so(path):
        return None
    with _said_of_loading(), ExitStack() as stack:
        files = StoredFiles(path, stack)
        return files.headers if files.packed else None


def packed_tensors(path: Path, *, prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors of the packed file or folder at `path` whose names start with `prefix`.

    They are on the host; what is packed is unpacked and checked, what is not is mapped. Raises
    `InputError` that names the file and the tensor which is damaged.
    """
    with _said_of_loading(), ExitStack() as stack:
        files = StoredFiles(path, stack)
        return {name: files.tensor(name) for name in files.headers if name.startswith(prefix)}


def packed_dtype(path: Path) -> torch.dtype | None:
    """Of the first floating tensor by name in the packed file at `path`, as it was before."""
    types = {name: each.dtype for name, each in (packed_headers(path) or {}).items()}
    found = (DTYPES[types[name]] for name in sorted(types) if types[name] in DTYPES)
    return next((dtype for dtype in found if dtype.is_floating_point), None)


def load_diffusers(cls: Any, folder: Path, dtype: torch.dtype | None) -> nn.Module:
    """What ``cls.from_pretrained(folder, torch_dtype=dtype)`` makes of the original of `folder`.

    Raises `InputError` for a tensor that is damaged or missing or of another shape, and for a
    quantised model.
    """
    from accelerate import init_empty_weights  # type: ignore[import-untyped]

    config = cls.load_config(folder, local_files_only=True)
    _refuse_quantised(folder, config)
    with _default_dtype(dtype), init_empty_weights():
        module: nn.Module = cls.from_config(config)
    with _said_of_loading(), ExitStack() as stack:
        files = StoredFiles(folder, stack)
        stored = {name: name for name in files.headers}
        if len(files.files) == 1:
            module._fix_state_dict_keys_on_load(stored)  # type: ignore[operator]
        values: dict[str, torch.Tensor] = {}
        for name, wanted in module.state_dict().items():
            if name not in stored:
                raise _unfit(folder, f"it has no tensor `{name}`")
            shape = files.headers[stored[name]].shape
            if shape != tuple(wanted.shape):
                raise _unfit(
                    folder,
                    f"tensor `{name}` is of shape {list(shape)} where the model has "
                    f"{list(wanted.shape)}",
                )
            kept = dtype is not None and _kept_in_float32(cls, name)
            goal = torch.float32 if kept else (dtype or wanted.dtype)
            own = files.tensor(stored[name])
            casts = dtype is None or own.is_floating_point()
            values[name] = own.to(goal) if casts else own
    module.load_state_dict(values, assign=True)
    config_of: Any = module
    config_of.register_to_config(_name_or_path=folder)
    return module


def load_transformers(cls: Any, folder: Path, dtype: torch.dtype) -> nn.Module:
    """What ``cls.from_pretrained(folder, dtype=dtype)`` makes of the original of `folder`.

    Raises `InputError` for a tensor that is damaged, and for a quantised model.
    """
    config = cls.config_class.from_pretrained(folder, local_files_only=True)
    _refuse_quantised(folder, config.to_dict())
    module: nn.Module = cls.from_pretrained(
        None, config=config, state_dict=packed_tensors(folder), dtype=dtype
    )
    return module


def _says_so(path: Path) -> bool:
    """Whether a file there says that it is packed; what cannot be read is for others to refuse."""
    for file in [path] if path.is_file() else sorted(path.glob("*.safetensors")):
        try:
            if is_packed(read_layout(file).metadata):
                return True
        except InputError:
            continue
    try:
        return read_header(path).format == "pickle"
    except InputError:
        return False


def _kept_in_float32(cls: Any, name: str) -> bool:
    kept = cls._keep_in_fp32_modules or ()
    names = (kept,) if isinstance(kept, str) else kept
    return not set(names).isdisjoint(name.split("."))


def _refuse_quantised(folder: Path, config: Mapping[str, Any]) -> None:
    if config.get("quantization_config") is not None:
        raise InputError(
            f"Cannot load {folder}: it is a quantised model that was packed, which its own library "
            f"has to load; `tightfit pack --unpack {folder} -o OUT` makes the original of it."
        )


def _unfit(folder: Path, why: str) -> InputError:
    return InputError(f"Cannot load {folder}: {why}.")


@contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """While inside, modules make their tables in `dtype`, as the loaders let them."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _said_of_loading() -> Iterator[None]:
    """The words of those who weigh and unpack, for this work."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace("Cannot weigh", "Cannot load", 1)) from None
