"""Host memory that the driver holds in place: copies from it to the card need no stop between."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable

import torch

from tightfit.place.runtime import runtime_library


class Once:
    """What several hold is held once, by address, and let go by the last of them."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._locks = [threading.Lock() for _ in range(_AT_ONCE)]

    def holding(self, register: Callable[[int, int], bool]) -> Callable[[int, int], bool]:
        """Do it for the first alone."""

        def hold(address: int, size: int) -> bool:
            with self._lock(address):
                if address not in self._holders and not register(address, size):
                    return False
                self._holders[address] = self._holders.get(address, 0) + 1
            return True

        return hold

    def leaving(self, unregister: Callable[[int], None]) -> Callable[[int], None]:
        """Do it for the last alone."""

        def leave(address: int) -> None:
            with self._lock(address):
                left = self._holders.get(address, 1) - 1
                if left > 0:
                    self._holders[address] = left
                    return
                unregister(address)
                self._holders.pop(address, None)

        return leave

    def _lock(self, address: int) -> threading.Lock:
        return self._locks[address // mmap.PAGESIZE % _AT_ONCE]


_AT_ONCE = 61
_once = Once()
_EVERY_CARD = 1
"""``cudaHostRegisterPortable``: memory that is held for one card is so for all of them."""


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
    def cuda(cls, budget: int, *, device: torch.device | None = None) -> Pins:
        """Held by CUDA's driver. Nothing is, where its runtime library is not loaded.

        It is asked on `device`, where one is given: else it would make a context on the first one.
        """
        runtime = runtime_library()
        if runtime is None:
            return cls.none()

        def register(address: int, size: int) -> bool:
            pointer = ctypes.c_void_p(address)
            with torch.cuda.device(device):
                if runtime.cudaHostRegister(pointer, ctypes.c_size_t(size), _EVERY_CARD) == 0:
                    return True
                # A refusal stays behind as the last error, which the next kernel check would raise.
                runtime.cudaGetLastError()
            return False

        def unregister(address: int) -> None:
            with torch.cuda.device(device):
                if runtime.cudaHostUnregister(ctypes.c_void_p(address)) != 0:
                    runtime.cudaGetLastError()

        return cls(budget, register=_once.holding(register), unregister=_once.leaving(unregister))

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
