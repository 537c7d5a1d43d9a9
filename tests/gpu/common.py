"""What tests on a CUDA card watch for."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def waits_refused() -> Iterator[None]:
    """Inside, PyTorch raises where the host would wait for the card, as far as it sees that."""
    with warnings.catch_warnings():
        # It says once that this is a prototype; as an error that would leave the mode switched on.
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def driver_calls() -> int:
    """How often the allocator has asked the driver for memory so far."""
    return int(torch.cuda.memory_stats().get("num_device_alloc", 0))


def emptied() -> None:
    """The allocator holds as little of earlier tests as can be.

    Scratch of libraries lies in pieces that cudaMallocAsync cannot give back then.
    """
    library: Any = torch._C
    gc.collect()
    torch.cuda.synchronize()
    library._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
