"""CUDA cards, with whichever allocator the process was started with."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch

from tightfit.allocators import LARGE_SEGMENT
from tightfit.card.backends import reading_of
from tightfit.card.base import Card, Observer, Reading
from tightfit.card.driver_pool import PoolFigures, driver_pools
from tightfit.card.polling import polled
from tightfit.errors import BooksError, UsageError
from tightfit.settings import Settings
from tightfit.units import MIB

_MUCH = 64 * MIB
"""Slack after the cache was emptied that is more than fragments of small tensors."""
_LOOK = 0.02
"""Seconds between two looks at the allocator: each holds up the thread that launches."""


class CudaCard(Card):
    """``cuda:N``. The allocator is read, never changed.

    The context is what NVML says this process holds less what the allocator reserved; None where
    the driver hides processes. Under ``async`` refusals are not counted, so they are None.
    """

    kind = "cuda"

    def __init__(self, index: int) -> None:
        if not torch.cuda.is_available():
            raise UsageError(
                f"card `cuda:{index}`: this PyTorch sees no CUDA device; use cpu or a "
                "virtual card such as virtual:6GiB."
            )
        if index >= torch.cuda.device_count():
            raise UsageError(
                f"card `cuda:{index}`: there are {torch.cuda.device_count()} CUDA devices."
            )
        self.index = index
        self.name = f"cuda:{index}"
        self.device = torch.device("cuda", index)
        self.allocator = _allocator()
        # Handles and workspaces of the matrix and convolution libraries are made once per
        # process: made now, they are part of every baseline and never look like a leak.
        with torch.no_grad(), torch.cuda.device(index):
            probe = torch.ones(16, 16, device=self.device)
            image = torch.ones(1, 16, 16, 16, device=self.device)
            torch.mm(probe, probe)
            torch.nn.functional.conv2d(image, torch.ones(16, 16, 3, 3, device=self.device))
            torch.cuda.synchronize(index)
        del probe, image
        self._pools = driver_pools(index) if self.allocator == "async" else None
        self._context = self._measure_context()

    @property
    def hardware(self) -> str:
        """The product's name: two of a kind behave alike."""
        return f"{torch.cuda.get_device_name(self.index)} {self.allocator}"

    @property
    def grain(self) -> int:
        """As the driver was seen to take it."""
        return super().grain if self._pools is None else self._pools.learn()

    @property
    def libraries(self) -> str:
        """Of cuDNN."""
        return convolution_library()

    def read(self) -> Reading:
        """Allocator figures of this process, and the driver's for the rest."""
        free, total = torch.cuda.mem_get_info(self.index)
        # One look, and as it is: PyTorch's own functions each look anew, and sort what they find.
        stats = torch.cuda.memory_stats_as_nested_dict(self.index)
        bounded = self._in_bounded_pools()
        return reading_of(
            free=free,
            total=total,
            allocated=_figure(stats, "allocated_bytes", "all", "current") + bounded.allocated,
            reserved=_figure(stats, "reserved_bytes", "all", "current") + bounded.reserved,
            peak_allocated=_figure(stats, "allocated_bytes", "all", "peak")
            + bounded.peak_allocated,
            peak_reserved=_figure(stats, "reserved_bytes", "all", "peak") + bounded.peak_reserved,
            context=self._context,
            refusals=None if self.allocator == "async" else _figure(stats, "num_ooms"),
            retries=_figure(stats, "num_alloc_retries"),
            limit=self._limit(),
        )

    def reset_peaks(self) -> None:
        """Start new peaks from the present figures."""
        torch.cuda.reset_peak_memory_stats(self.index)
        if self._pools is not None:
            self._pools.reset_peaks()

    def trim(self) -> None:
        """Wait, then empty the cache: an asynchronous free counts only when it is reached."""
        torch.cuda.synchronize(self.index)
        with torch.cuda.device(self.index):
            torch.cuda.empty_cache()
        if self._pools is not None:
            self._pools.trim()

    def drop_scratch(self) -> None:
        """The workspaces of cuBLAS: one that was made while the cache was full keeps a whole
        segment from being given back, of gigabytes after a large job."""
        reading = self.read()
        slack = (reading.reserved or 0) - (reading.allocated or 0)
        drop = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if drop is None or slack <= _MUCH:
            return
        drop()
        self.trim()

    def sync(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize(self.index)

    def check(self) -> None:
        """Allocated within reserved within the card."""
        reading = self.read()
        assert reading.allocated is not None
        assert reading.reserved is not None
        if not 0 <= reading.allocated <= reading.reserved <= reading.total:
            raise BooksError(
                f"{self.name}: allocated {reading.allocated}, reserved {reading.reserved}, "
                f"total {reading.total}"
            )

    @contextmanager
    def cap(self, budget: int) -> Iterator[None]:
        """Cap what the process reserves; a user's tighter limit stays, and returns.

        PyTorch's own limit bounds what ``native`` reserves. ``expandable`` maps whole segments
        and may pass it by one, so it gets one less. Under ``async`` that limit counts live
        tensors alone, so the driver bounds the pool as well, where it can.
        """
        total = torch.cuda.get_device_properties(self.index).total_memory
        # Where nothing was set, cudaMallocAsync says a number far above 1, which cannot be set.
        before = min(1.0, torch.cuda.get_per_process_memory_fraction(self.index))
        limit = min(budget, int(before * total))
        usable = limit - LARGE_SEGMENT if self.allocator == "expandable" else limit
        if self._pools is not None or torch.cuda.memory_reserved(self.index) > usable:
            self.trim()
        torch.cuda.set_per_process_memory_fraction(max(0, usable) / total, self.index)
        try:
            with self._bounded(limit):
                yield
        finally:
            torch.cuda.set_per_process_memory_fraction(before, self.index)

    @contextmanager
    def observe(self, observer: Observer) -> Iterator[None]:
        """Look at times; what lives shorter is seen in the peaks alone."""

        def look() -> None:
            bounded = self._in_bounded_pools()
            observer(
                torch.cuda.memory_allocated(self.index) + bounded.allocated,
                torch.cuda.memory_reserved(self.index) + bounded.reserved,
            )

        with polled(look, seconds=_LOOK):
            yield

    @contextmanager
    def moves(self) -> Iterator[list[int] | None]:
        """The caching allocator's own history; None under ``async``, or while a user records it."""
        torch_memory: Any = torch.cuda.memory
        recording = getattr(torch._C, "_cuda_isHistoryEnabled", bool)
        if self.allocator == "async" or recording():
            yield None
            return
        changes: list[int] = []
        torch_memory._record_memory_history(context=None, clear_history=True, device=self.device)
        try:
            yield changes
            torch.cuda.synchronize(self.index)
            history = torch_memory._snapshot(self.device)["device_traces"][self.index]
            signs = {"alloc": 1, "free_completed": -1}
            changes += [
                signs[entry["action"]] * int(entry["size"])
                for entry in history
                if entry["action"] in signs
            ]
        finally:
            torch_memory._record_memory_history(enabled=None, device=self.device)

    @property
    def spills(self) -> bool:
        """Windows' driver does so by default, also for Linux running on it (WSL)."""
        return platform.system() == "Windows" or "microsoft" in platform.release().lower()

    def supports(self, dtype: torch.dtype) -> bool:
        """bfloat16 needs a card that computes in it, not one that emulates it."""
        if dtype is not torch.bfloat16:
            return True
        return torch.cuda.get_device_capability(self.index) >= (8, 0)

    def _limit(self) -> int | None:
        """What PyTorch was told that this process may reserve; under ``async``, have in tensors."""
        fraction = torch.cuda.get_per_process_memory_fraction(self.index)
        if fraction >= 1:
            return None
        return round(fraction * torch.cuda.get_device_properties(self.index).total_memory)

    def _in_bounded_pools(self) -> PoolFigures:
        return PoolFigures() if self._pools is None else self._pools.read()

    def _bounded(self, limit: int) -> AbstractContextManager[None]:
        """A pool that takes what others of this process leave of `limit`, where there are pools."""
        if self._pools is None:
            return nullcontext()
        held = torch.cuda.memory_reserved(self.index) + self._pools.read().reserved
        return self._pools.bounded(limit - held)

    def _measure_context(self) -> int | None:
        """Bytes of this process outside the allocator, or None where the driver hides them."""
        reserved = torch.cuda.memory_reserved(self.index) + self._in_bounded_pools().reserved
        with suppress(Exception):  # NVML is optional, and raises its own errors
            import pynvml

            pynvml.nvmlInit()
            bus: Any = torch.cuda.get_device_properties(self.index)
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(
                f"{bus.pci_domain_id:08x}:{bus.pci_bus_id:02x}:{bus.pci_device_id:02x}.0".encode()
            )
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid() and process.usedGpuMemory:
                    return max(0, int(process.usedGpuMemory) - reserved)
        return None


def _figure(statistics: Any, *path: str) -> int:
    """0 for what is not kept."""
    for name in path:
        statistics = statistics.get(name, {})
    return int(statistics or 0)


def convolution_library() -> str:
    """The version of cuDNN that this PyTorch has; empty where it has none."""
    version: Any = torch.backends.cudnn.version
    return str(version() or "")


def _allocator() -> str:
    if torch.cuda.get_allocator_backend() == "cudaMallocAsync":
        return "async"
    return "expandable" if Settings.from_environ().allocator == "expandable" else "native"
