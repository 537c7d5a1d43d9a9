"""Pools of the CUDA driver that cannot grow beyond a size.

PyTorch's own limit under cudaMallocAsync counts bytes in live tensors; what its pool takes from
the card goes past it by a quarter and more. The driver bounds a pool only when the pool is made
(``maxSize``), so a capped stretch of work gets one of its own. Only allocations made meanwhile
come from it: nothing that PyTorch holds is touched, and its own pool is back afterwards.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache

import torch

_PINNED, _DEVICE = 1, 1  # CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE
_RELEASE_THRESHOLD, _RESERVED, _RESERVED_HIGH, _USED, _USED_HIGH = 4, 5, 6, 7, 8
_KEEP_ALL = 2**64 - 1
_SCRATCH = 2**30


class _DriverError(RuntimeError):
    """The driver refused."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Props(ctypes.Structure):
    """``CUmemPoolProps``; 88 bytes."""

    _fields_ = (
        ("allocation_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("security", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("rest", ctypes.c_ubyte * 54),
    )


@dataclass(frozen=True)
class PoolFigures:
    """Bytes, over all pools of a device that were made here and still hold something."""

    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0


@dataclass
class _Pool:
    handle: ctypes.c_void_p
    active: bool = True


class DriverPools:
    """The bounded pools of one device; see `driver_pools`."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._lock = threading.RLock()
        self._pools: list[_Pool] = []
        self._grain: int | None = None

    def learn(self) -> int:
        """The grain: what the driver takes for a tensor of one byte (32 MiB was seen)."""
        if self._grain is None:
            with self._pool(_SCRATCH) as pool:
                byte = torch.empty(1, dtype=torch.uint8, device=torch.device("cuda", self._index))
                self._grain = max(1, self._get(pool, _RESERVED))
                del byte
        return self._grain

    def read(self) -> PoolFigures:
        """Look; never synchronises."""
        with self._lock:
            rows = [
                [self._get(pool, a) for a in (_USED, _RESERVED, _USED_HIGH, _RESERVED_HIGH)]
                for pool in self._pools
            ]
        return PoolFigures(*(sum(column) for column in zip(*rows, strict=True)))

    def reset_peaks(self) -> None:
        """Start new peaks from the present figures."""
        with self._lock:
            for pool in self._pools:
                self._set(pool, _USED_HIGH, 0)
                self._set(pool, _RESERVED_HIGH, 0)

    def trim(self) -> None:
        """Give back what no tensor is in; wait for the device before."""
        with self._lock:
            for pool in self._pools:
                self._call("cuMemPoolTrimTo", pool.handle, ctypes.c_size_t(0))
            self._drop_empty()

    @contextmanager
    def bounded(self, size: int) -> Iterator[None]:
        """While inside, new tensors come from a pool that never holds more than `size` bytes.

        Tensors that outlive the block stay valid, and stay counted. The driver rounds sizes up to
        its grain, so `size` is rounded down; less than one grain is taken as one.
        """
        grain = self.learn()
        with self._pool(max(size // grain, 1) * grain):
            yield

    @contextmanager
    def _pool(self, size: int) -> Iterator[_Pool]:
        pool = _Pool(self._create(size))
        outside = ctypes.c_void_p()
        with self._lock:
            self._call("cuDeviceGetMemPool", ctypes.byref(outside), self._index)
            self._call("cuDeviceSetMemPool", self._index, pool.handle)
            self._pools.append(pool)
        try:
            yield pool
        except BaseException:
            with suppress(_DriverError):  # a broken device must not hide what broke it
                self._close(pool, outside)
            raise
        self._close(pool, outside)

    def _close(self, pool: _Pool, outside: ctypes.c_void_p) -> None:
        """Put the pool back that was in use before; this one lives on while tensors are in it."""
        with self._lock:
            pool.active = False
            self._call("cuDeviceSetMemPool", self._index, outside)
            self._drop_empty()

    def _create(self, size: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        location = _Location(_DEVICE, self._index)
        props = _Props(allocation_type=_PINNED, location=location, max_size=size)
        self._call("cuMemPoolCreate", ctypes.byref(handle), ctypes.byref(props))
        self._set(_Pool(handle), _RELEASE_THRESHOLD, _KEEP_ALL)
        return handle

    def _drop_empty(self) -> None:
        """Destroy pools that are out of use; the driver waits for frees that are still to come."""
        for pool in [p for p in self._pools if not p.active and self._get(p, _USED) == 0]:
            self._pools.remove(pool)
            self._call("cuMemPoolDestroy", pool.handle)

    def _get(self, pool: _Pool, attribute: int) -> int:
        value = ctypes.c_uint64()
        self._call("cuMemPoolGetAttribute", pool.handle, attribute, ctypes.byref(value))
        return value.value

    def _set(self, pool: _Pool, attribute: int, value: int) -> None:
        content = ctypes.c_uint64(value)
        self._call("cuMemPoolSetAttribute", pool.handle, attribute, ctypes.byref(content))

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._cuda, name)(*arguments)
        if status:
            raise _DriverError(f"the CUDA driver answered {status} to {name}")


@cache
def driver_pools(index: int) -> DriverPools | None:
    """The pools of device ``cuda:index``; None where the driver has none."""
    try:
        pools = DriverPools(index)
        pools.learn()
    except (OSError, AttributeError, _DriverError):
        return None
    return pools
