"""PyTorch's caching allocator, by its published constants."""

from __future__ import annotations

from collections.abc import Callable

from tightfit.allocators.base import ALIGNMENT, Block, round_up
from tightfit.allocators.pools import Pool, PooledAllocator
from tightfit.units import MIB

SMALL_LIMIT = 1 * MIB
SMALL_SEGMENT = 2 * MIB
LARGE_LIMIT = 10 * MIB
LARGE_SEGMENT = 20 * MIB
LARGE_ROUNDING = 2 * MIB
_TOP = 1 << 50
"""Where addresses begin to fall; far above any sum of segments."""


class NativeAllocator(PooledAllocator):
    """PyTorch's caching allocator, by its published constants."""

    def __init__(self, grow: Callable[[int], bool], shrink: Callable[[int], None]) -> None:
        super().__init__(grow, shrink)
        self._small = Pool(split_above=ALIGNMENT - 1)
        self._large = Pool(split_above=SMALL_LIMIT)
        self.pools = (self._small, self._large)
        self._lowest = _TOP  # a driver hands out addresses from the top down

    def _place(self, size: int) -> Block | None:
        pool = self._small if size <= SMALL_LIMIT else self._large
        block = pool.find(size)
        if block is None:
            segment = self._segment(size)
            if not self._reserve(segment):
                return None
            self._lowest -= segment
            block = Block(self._lowest, segment, pool)
            pool.heads.append(block)
        return pool.cut(block, size)

    def _return(self, block: Block) -> None:
        assert block.pool is not None
        block.pool.put(block)

    def trim(self) -> int:
        """Segments that are wholly free go back."""
        gone = 0
        for pool in self.pools:
            for block in pool.free_blocks():
                if block.before is None and block.after is None:
                    pool.unlist(block)
                    pool.heads.remove(block)
                    gone += block.size
        if gone:
            self._release(gone)
        return gone

    @staticmethod
    def _segment(size: int) -> int:
        if size <= SMALL_LIMIT:
            return SMALL_SEGMENT
        if size < LARGE_LIMIT:
            return LARGE_SEGMENT
        return round_up(size, LARGE_ROUNDING)
