"""Checkpoints that are pickles (``.ckpt``, ``.pt``, ``.pth``, ``.bin``): refused unless allowed.

A pickle is a program: to load one is to run it. Where they are allowed, PyTorch's own loader for
weights alone reads them, which runs nothing but what tensors are made of; one that needs more is
refused all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.weigh.files.quantised import elements_of
from tightfit.weigh.files.tensor_header import Header, TensorHeader, unreadable

if TYPE_CHECKING:
    import torch

KINDS = (".bin", ".ckpt", ".pt", ".pth")
MAGICS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")

_allowed: ContextVar[bool] = ContextVar("pickles_allowed", default=False)
_WITHIN = ("state_dict", "model_state_dict", "model", "module", "params_ema", "params")
"""Where trainers keep the weights, beside what else they keep."""
_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "float32": "F32",
    "float64": "F64",
    "int64": "I64",
}
"""What safetensors call PyTorch's types."""
REFUSED = (
    "it is a pickle, which is code: convert it to safetensors. Where you trust it, `encode`, "
    "`decode`, `plan` and `generate` read its tensors alone with --allow-pickle"
)


@contextmanager
def pickles_allowed(allowed: bool) -> Iterator[None]:
    """While inside, in this thread, pickles are read where `allowed`; else it stays as it was."""
    token = _allowed.set(allowed or _allowed.get())
    try:
        yield
    finally:
        _allowed.reset(token)


def check_allowed(path: Path) -> None:
    """Raise `InputError` where pickles are not allowed."""
    if not _allowed.get():
        raise unreadable(path, REFUSED)


def read_pickle(path: Path) -> Header:
    """Names, shapes and types of the tensors in the pickle at `path`; imports PyTorch.

    Raises `InputError` where pickles are not allowed, and for what is damaged or more than tensors.
    """
    tensors = pickled_tensors(path, device="meta")
    shapes = {name: _Shape(tuple(each.shape), _dtype(path, each)) for name, each in tensors.items()}
    listed = tuple(
        TensorHeader(
            name,
            shapes[name].shape,
            shapes[name].dtype,
            each.numel() * each.itemsize,
            elements_of(name, shapes[name].shape, shapes[name].dtype, names=shapes),
        )
        for name, each in tensors.items()
    )
    return Header(path, "pickle", listed, {}, (path,))


def pickled_tensors(path: Path, *, device: str = "cpu") -> dict[str, torch.Tensor]:
    """The tensors in the pickle at `path` by their names, mapped where its form lets them be.

    Raises as `read_pickle` does.
    """
    check_allowed(path)
    import warnings
    from pickle import UnpicklingError

    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Any = torch.load(
                path,
                map_location=device,
                weights_only=True,
                mmap=device == "cpu" and _is_zip(path),
            )
    except UnpicklingError as error:
        if "weights" not in str(error).lower():
            raise unreadable(path, f"the pickle is cut off or damaged ({_first(error)})") from None
        raise unreadable(
            path,
            "the pickle needs more than tensors, which would run its code; convert it to "
            "safetensors where you trust it",
        ) from None
    except Exception as error:  # a damaged pickle raises whatever its steps happen to raise
        raise unreadable(path, f"the pickle is cut off or damaged ({_first(error)})") from None
    tensors = _weights(found)
    if not tensors:
        raise unreadable(path, "the pickle holds no tensors by name")
    return tensors


class _Shape:
    """What tells how a type is packed."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape = shape
        self.dtype = dtype


def _weights(found: Any) -> dict[str, torch.Tensor]:
    import torch

    if not isinstance(found, Mapping):
        return {}
    for name in _WITHIN:
        if isinstance(found.get(name), Mapping):
            return _weights(found[name])
    return {str(key): each for key, each in found.items() if isinstance(each, torch.Tensor)}


def _dtype(path: Path, tensor: torch.Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _NAMES:
        raise unreadable(path, f"it holds values of the type {name}")
    return _NAMES[name]


def _is_zip(path: Path) -> bool:
    with path.open("rb", buffering=0) as file:
        return file.read(len(MAGICS[0])) == MAGICS[0]


def _first(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200].rstrip(".")
