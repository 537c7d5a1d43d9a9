"""Host memory of our own, that belongs to no allocator."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import torch

from tightfit.errors import MemoryShortage
from tightfit.units import format_bytes

_HUGE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_STAYS: int | None = getattr(mmap, "MADV_DONTFORK", None)
_HUGE_BYTES = 2**21


def mapping(size: int, *, what: str = "masters of weights", private: bool = False) -> torch.Tensor:
    """Bytes of host memory that belong to no allocator; pages are taken when they are written.

    In large pages where the system has them: they are taken, and pinned, faster. Raises
    `MemoryShortage` where the system refuses so much, and says `what` it was for.

    Linux keeps large pages from memory that is shared with forked processes, unless its
    administrator allows them (`shmem_enabled`); what is `private` gets them, and is not there in a
    forked process.
    """
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    try:
        memory: Any = _private(size) if private else mmap.mmap(-1, size)
    except (OSError, OverflowError) as error:
        raise MemoryShortage(
            f"Not enough host memory for {what}: {format_bytes(size)} were refused ({error}).",
            advice="close other programs, or raise the limit of the process (`ulimit -v`)",
        ) from None
    if _HUGE is not None and size >= _HUGE_BYTES:
        with suppress(OSError):  # the kernel was built without them
            memory.madvise(_HUGE)
    return torch.frombuffer(memory, dtype=torch.uint8, count=size)


def _private(size: int) -> Any:
    flags: Any = getattr(mmap, "MAP_PRIVATE", None)
    if flags is None:  # Windows, where nothing forks
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=flags | mmap.MAP_ANONYMOUS)
    if _STAYS is not None:
        with suppress(OSError):
            memory.madvise(_STAYS)
    return memory
