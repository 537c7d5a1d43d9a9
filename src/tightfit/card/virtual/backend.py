"""``vcard`` as a device of PyTorch: the one file that leans on its experimental interface.

`torch.utils.backend_registration` lets a device be written in Python; tried with torch 2.11 and
2.13. Registered kernels, unlike dispatch modes, also work in other threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tightfit.card.virtual.keeper import DEVICE_TYPE, keeper_at, keepers
from tightfit.card.virtual.operators import HALVES
from tightfit.card.virtual.tensor import VirtualTensor, fresh, payloads

_aten = torch.ops.aten


class _Backend:
    """What `torch.vcard` answers."""

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def current_device() -> int:
        """The lowest open card."""
        return min(keepers.keys(), default=0)

    @staticmethod
    def device_count() -> int:
        """One more than the highest open index."""
        return max(keepers.keys(), default=0) + 1

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Values are drawn on the host: its generator was seeded already."""

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Raise what the card kept back."""
        keeper_at(torch.device(device).index if device is not None else None).settle()

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return list(HALVES)


_LOW_PRECISION = (
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "linear",
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "scaled_dot_product_attention",
)
_FULL_PRECISION = ("layer_norm", "group_norm", "softmax.int", "log_softmax.int", "exp", "sum")

_registered = threading.Lock()
_libraries: list[Any] = []


def register() -> None:
    """Make ``vcard`` a device of this process; harmless when repeated."""
    with _registered:
        if _libraries:
            return
        _setup_privateuseone_for_python_backend(DEVICE_TYPE, backend_module=_Backend())
        aten = _library("aten", "")
        aten.impl("empty.memory_format", _empty, "PrivateUse1")
        aten.impl("empty_strided", _empty_strided, "PrivateUse1")
        aten.impl("_copy_from", _copy_from, "PrivateUse1")
        aten.impl("_local_scalar_dense", _item, "PrivateUse1")
        others = _library("_", "AutocastPrivateUse1")
        others.fallback(torch.library.fallthrough_kernel)
        for name in _LOW_PRECISION:
            aten.impl(name, _autocast(name, None), "AutocastPrivateUse1")
        for name in _FULL_PRECISION:
            aten.impl(name, _autocast(name, torch.float32), "AutocastPrivateUse1")
        _libraries.extend((aten, others))


def _library(namespace: str, key: str) -> Any:
    """PyTorch's own class, whose methods carry no types."""
    make: Any = torch.library.Library
    return make(namespace, "IMPL", key)


def _empty(
    size: list[int],
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> VirtualTensor:
    del layout, pin_memory
    kind = torch.contiguous_format if memory_format is None else memory_format
    return fresh(
        lambda where: torch.empty(size, dtype=dtype, memory_format=kind, device=where),
        keeper_at(device.index if device is not None else None),
        operator="empty",
    )


def _empty_strided(
    size: list[int],
    stride: list[int],
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> VirtualTensor:
    del layout, pin_memory
    return fresh(
        lambda where: torch.empty_strided(size, stride, dtype=dtype, device=where),
        keeper_at(device.index if device is not None else None),
        operator="empty_strided",
    )


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    del non_blocking
    payloads(target).copy_(payloads(source))
    return target


def _item(source: torch.Tensor) -> Any:
    """Of a number on the card, where no dispatch is: `torch.tensor` asks so for those in a list."""
    return payloads(source).item()


def _autocast(name: str, dtype: torch.dtype | None) -> Callable[..., Any]:
    """A kernel that casts floating card tensors, then calls the operator without autocast."""
    base, _, overload = name.partition(".")
    func = getattr(getattr(_aten, base), overload or "default")
    key: Any = torch._C.DispatchKey
    off = torch._C.DispatchKeySet(key.AutocastPrivateUse1)

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            wanted = torch.get_autocast_dtype(DEVICE_TYPE) if dtype is None else dtype
            floats = value.is_floating_point() and value.dtype != torch.float64
            return value.to(wanted) if floats and value.device.type == DEVICE_TYPE else value
        if isinstance(value, (list, tuple)):
            return type(value)(map(cast, value))
        return value

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(off):
            return func(*cast(args), **{key: cast(value) for key, value in kwargs.items()})

    return kernel
