"""Figures of back ends that count in different ways, as one `Reading`.

Back ends are given as their PyTorch modules (`torch.cuda`, `torch.xpu`, `torch.mps`). Only CUDA
was ever measured; the others are tried with stand-ins that count as theirs do.
"""

from __future__ import annotations

from typing import Protocol

from tightfit.card.base import Reading


class CountsFree(Protocol):
    """CUDA and XPU: the driver tells what is free, and the allocator what it took and gave out."""

    def mem_get_info(self, device: int, /) -> tuple[int, int]:
        """(free, total) of the device, whoever holds the rest."""

    def memory_allocated(self, device: int, /) -> int:
        """Bytes in tensors."""

    def memory_reserved(self, device: int, /) -> int:
        """Bytes taken from the driver, the cache included."""

    def max_memory_allocated(self, device: int, /) -> int:
        """The peak of the one."""

    def max_memory_reserved(self, device: int, /) -> int:
        """The peak of the other."""


class Recommends(Protocol):
    """MPS: one memory for all, of which a part is recommended; others are not counted."""

    def recommended_max_memory(self) -> int:
        """What the system advises to stay below."""

    def current_allocated_memory(self) -> int:
        """Bytes in tensors."""

    def driver_allocated_memory(self) -> int:
        """Bytes that the driver gave this process, the cache included."""


def reading_of(
    *,
    total: int,
    free: int | None,
    allocated: int,
    reserved: int,
    peak_allocated: int | None = None,
    peak_reserved: int | None = None,
    context: int | None = None,
    refusals: int | None = None,
    retries: int = 0,
    limit: int | None = None,
) -> Reading:
    """A reading in which everything that is not free belongs to somebody; sizes in bytes.

    What others hold is what is left of the total; unknown where `free` or `context` is.
    """
    others = None
    if free is not None and context is not None:
        others = max(0, total - free - reserved - context)
    return Reading(
        total=total,
        allocated=allocated,
        reserved=reserved,
        peak_allocated=peak_allocated,
        peak_reserved=peak_reserved,
        context=context,
        held_by_others=others,
        refusals=refusals,
        retries=retries,
        free=free,
        limit=limit,
    )


def read_counting_free(
    backend: CountsFree, device: int, *, total: int, context: int | None = None
) -> Reading:
    """A look at device number `device` of CUDA or XPU.

    `total` is for drivers that cannot tell what is free (some of Intel's): then free is unknown,
    and not the total less what this process took.
    """
    free: int | None
    try:
        free, total = backend.mem_get_info(device)
    except RuntimeError:
        free = None
    return reading_of(
        total=total,
        free=free,
        allocated=backend.memory_allocated(device),
        reserved=backend.memory_reserved(device),
        peak_allocated=backend.max_memory_allocated(device),
        peak_reserved=backend.max_memory_reserved(device),
        context=context,
    )


def read_recommending(backend: Recommends) -> Reading:
    """A look at MPS: what is free is what the advice leaves, as far as this process knows."""
    total, reserved = backend.recommended_max_memory(), backend.driver_allocated_memory()
    return reading_of(
        total=total,
        free=max(0, total - reserved),
        allocated=backend.current_allocated_memory(),
        reserved=reserved,
    )
