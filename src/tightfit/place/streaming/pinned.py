"""Host memory that the driver holds in place: copies from it to the card need no stop between."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable

import torch

from tightfit.place.runtime import runtime_library


class Pins:
    """Buffers held in place, within a budget; one that is refused is copied all the same, slower.

    Threads may hold and release different buffers at the same time.

    Attributes:
        budget: bytes that may be held.
        refused: buffers that were not held, for want of budget or by the driver's word.
        refused_bytes: of them.
    """

    def __init__(
        self,
        budget: int,
        *,
        register: Callable[[int, int], bool],
        unregister: Callable[[int], None],
    ) -> None:
        """`register` is given an address and a size, and `unregister` the address."""
        self.budget = budget
        self.refused = 0
        self.refused_bytes = 0
        self._held: dict[int, torch.Tensor] = {}
        self._books = threading.Lock()
        self._register = register
        self._unregister = unregister

    @property
    def asked(self) -> int:
        """Bytes of the buffers that are held."""
        with self._books:
            return sum(buffer.nbytes for buffer in self._held.values())

    @property
    def bytes(self) -> int:
        """What they really take: every page that a byte of one lies in."""
        with self._books:
            return self._taken()

    @classmethod
    def none(cls) -> Pins:
        """Nothing is held."""
        return cls(0, register=lambda _at, _size: False, unregister=lambda _at: None)

    @classmethod
    def cuda(cls, budget: int) -> Pins:
        """Held by CUDA's driver. Nothing is, where its runtime library is not loaded."""
        runtime = runtime_library()
        if runtime is None:
            return cls.none()

        def register(address: int, size: int) -> bool:
            pointer = ctypes.c_void_p(address)
            if runtime.cudaHostRegister(pointer, ctypes.c_size_t(size), 0) == 0:
                return True
            # A refusal stays behind as the last error, which the next kernel check would raise.
            runtime.cudaGetLastError()
            return False

        def unregister(address: int) -> None:
            if runtime.cudaHostUnregister(ctypes.c_void_p(address)) != 0:
                runtime.cudaGetLastError()

        return cls(budget, register=register, unregister=unregister)

    def hold(self, buffer: torch.Tensor) -> bool:
        """Hold `buffer` in place, from its first to its last byte; whether that was done.

        After an interrupt nobody knows: it counts as held until it is released.
        """
        if buffer.nbytes == 0:
            return False
        address = buffer.data_ptr()
        with self._books:
            fits = self._taken() + _pages(buffer) <= self.budget
            known = self._held.get(address)
            if fits:
                self._held[address] = buffer
        if fits and self._register(address, buffer.nbytes):
            return True
        with self._books:
            if fits and known is None:
                self._held.pop(address, None)
            self.refused += 1
            self.refused_bytes += buffer.nbytes
        return False

    def release(self, buffer: torch.Tensor) -> None:
        """Let a held buffer go; nothing may be copied from it any more. Harmless for others."""
        if buffer.data_ptr() in self._held:
            self._unregister(buffer.data_ptr())
            with self._books:
                self._held.pop(buffer.data_ptr(), None)

    def _taken(self) -> int:
        return sum(map(_pages, self._held.values()))


def pages(size: int) -> int:
    """What `size` bytes take that start with a page."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _pages(buffer: torch.Tensor) -> int:
    """The driver holds every page that a byte of `buffer` lies in."""
    start = buffer.data_ptr() % mmap.PAGESIZE
    return pages(start + buffer.nbytes)
