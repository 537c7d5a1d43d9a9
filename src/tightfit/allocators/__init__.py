"""Models of memory allocators: which bytes are reserved for the bytes that are allocated.

Four models behind one face; arithmetic alone. `ExactAllocator` rounds to 512 bytes and reserves
nothing more. `NativeAllocator` follows PyTorch's caching allocator: two pools, 2 MiB and 20 MiB
segments, best fit, splitting, and a cache that is given back before a request is refused.
`ArenaAllocator` is an address range that grows by a grain, which is how expandable segments and
cudaMallocAsync look from outside (32 MiB steps were measured for the latter). The virtual card
runs on them, and the planner replays on them what a dry run allocated.
"""

from collections.abc import Callable

from tightfit.allocators.arena import ASYNC_GRAIN, ArenaAllocator, expandable, malloc_async
from tightfit.allocators.base import ALIGNMENT, Allocator, Block, ExactAllocator, Full, round_up
from tightfit.allocators.native import LARGE_ROUNDING, LARGE_SEGMENT, SMALL_LIMIT, NativeAllocator

KINDS = ("exact", "native", "async", "expandable")


def open_allocator(
    kind: str,
    grow: Callable[[int], bool],
    shrink: Callable[[int], None],
    *,
    grain: int = ASYNC_GRAIN,
) -> Allocator:
    """The model called `kind`, one of `KINDS`, on a driver; `grain` is that of ``async``."""
    if kind == "native":
        return NativeAllocator(grow, shrink)
    if kind == "expandable":
        return expandable(grow, shrink)
    if kind == "async":
        return malloc_async(grow, shrink, grain=grain)
    return ExactAllocator(grow, shrink)


__all__ = [
    "ALIGNMENT",
    "ASYNC_GRAIN",
    "KINDS",
    "LARGE_ROUNDING",
    "LARGE_SEGMENT",
    "SMALL_LIMIT",
    "Allocator",
    "ArenaAllocator",
    "Block",
    "ExactAllocator",
    "Full",
    "NativeAllocator",
    "expandable",
    "malloc_async",
    "open_allocator",
    "round_up",
]
