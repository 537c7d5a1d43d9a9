"""Host memory of our own, that belongs to no allocator."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import torch

_HUGE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_HUGE_BYTES = 2**21


def mapping(size: int) -> torch.Tensor:
    """Bytes of host memory that belong to no allocator; pages are taken when they are written.

    In large pages where the system has them: they are taken, and pinned, faster.
    """
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    memory: Any = mmap.mmap(-1, size)
    if _HUGE is not None and size >= _HUGE_BYTES:
        with suppress(OSError):  # the kernel was built without them
            memory.madvise(_HUGE)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size)
