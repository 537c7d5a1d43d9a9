"""What a tensor is made of: its own storage, or what a shell wraps and a parameter carries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.nn.parameter import is_lazy

DEPTH = 4
"""Containers or objects within one another that are looked into."""

_PACKED_PAIRS = "_x2"  # torch's ending for dtypes that keep two values in one element
_NARROW_INTEGERS = (torch.int8, torch.uint8)


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that hold the bytes of `tensor`; each object once.

    A shell (a subclass that takes over dispatch, such as a quantised or a virtual tensor) gives
    what it wraps, at any depth. What a tensor carries in plain attributes comes after it: scales
    and code books in a ``quant_state``, for one. A lazy parameter has no parts yet.
    """
    found: list[torch.Tensor] = []
    _collect(tensor, found, set())
    return found


def data_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """`parts` without what is only carried along."""
    if is_lazy(tensor):
        return []
    if _is_shell(tensor):
        inner = _wrapped(tensor)
        return [piece for part in inner for piece in data_parts(part)] if inner else [tensor]
    return _strided(tensor)


def is_packed(tensor: torch.Tensor) -> bool:
    """Whether what is stored has to be unpacked or dequantised before it is a weight."""
    if _says(tensor, "quant_type", "quant_state") or _is_pairs(tensor.dtype):
        return True
    if _is_shell(tensor) and not _is_payload(tensor):
        return [part.dtype for part in data_parts(tensor)] != [tensor.dtype]
    return False


def elements(tensor: torch.Tensor) -> int:
    """Logical values, whatever they are packed into: the shape that the weight stands for."""
    if is_lazy(tensor):
        return 0
    shape = getattr(tensor, "quant_shape", None)
    if shape is None:
        shape = getattr(getattr(tensor, "quant_state", None), "shape", None)
    if shape is not None:
        return math.prod(shape)
    return tensor.numel() * (2 if _is_pairs(tensor.dtype) else 1)


def converted_bytes(
    tensor: torch.Tensor, compute_dtype: torch.dtype | None, *, values: int | None = None
) -> int:
    """Bytes of the copy in `compute_dtype` that is made when the weight is used.

    0 where it has that dtype already and is not packed, and for what is no number to multiply by:
    indices, masks, complex tables.

    Args:
        tensor: the weight as it is kept.
        compute_dtype: what it is used in; None for what it says itself, which is no conversion
            unless it is packed.
        values: logical values, where the owner knows better than `elements`.
    """
    values = elements(tensor) if values is None else values
    if is_packed(tensor) or values > elements(tensor):
        return values * (compute_dtype or _told_dtype(tensor)).itemsize
    if compute_dtype is None or tensor.dtype == compute_dtype:
        return 0
    is_number = tensor.dtype.is_floating_point or tensor.dtype in _NARROW_INTEGERS
    return values * compute_dtype.itemsize if is_number else 0


def _told_dtype(tensor: torch.Tensor) -> torch.dtype:
    """What a packed tensor becomes by its own word; float32 where it says nothing."""
    told = getattr(getattr(tensor, "quant_state", None), "dtype", None)
    if isinstance(told, torch.dtype):
        return told
    floating = tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1
    return tensor.dtype if floating else torch.float32


def _collect(tensor: torch.Tensor, found: list[torch.Tensor], seen: set[int]) -> None:
    if id(tensor) in seen or is_lazy(tensor):
        return
    seen.add(id(tensor))
    inner = _wrapped(tensor) if _is_shell(tensor) else []
    for part in inner:
        _collect(part, found, seen)
    if not inner:
        for part in _strided(tensor):
            found.append(part)
            seen.add(id(part))
    if not isinstance(tensor, FakeTensor):
        for part in _carried(vars(tensor), DEPTH, seen):
            _collect(part, found, seen)


def _is_shell(tensor: torch.Tensor) -> bool:
    """Whether its class takes over dispatch, so that its own storage may hold nothing."""
    own: Any = type(tensor).__torch_dispatch__
    return own is not torch.Tensor.__torch_dispatch__ and not isinstance(tensor, FakeTensor)


def _is_payload(tensor: torch.Tensor) -> bool:
    return isinstance(getattr(tensor, "payload", None), torch.Tensor)


def _wrapped(shell: Any) -> list[torch.Tensor]:
    """The tensors that make up a shell; empty where it does not show them."""
    if _is_payload(shell):
        return [shell.payload]
    flatten = getattr(shell, "__tensor_flatten__", None)
    if flatten is not None:
        names, _ = flatten()
        return [getattr(shell, name) for name in names]
    return list(_carried(vars(shell), DEPTH, {id(shell)}))


def _strided(tensor: Any) -> list[torch.Tensor]:
    """Itself, or the tensors that a sparse layout is made of."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def _carried(value: Any, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    """Tensors in containers and plain objects; modules, classes and functions are not entered."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if not depth or id(value) in seen:
        return
    for item in _items(value):
        yield from _carried(item, depth - 1, seen | {id(value)})


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, (nn.Module, type, Enum)) or callable(value):
        return []
    if is_dataclass(value):
        return [getattr(value, field.name, None) for field in fields(value)]
    return list(vars(value).values()) if hasattr(value, "__dict__") else []


def _says(tensor: torch.Tensor, *names: str) -> bool:
    return any(getattr(tensor, name, None) is not None for name in names)


def _is_pairs(dtype: torch.dtype) -> bool:
    return str(dtype).endswith(_PACKED_PAIRS)
