"""Pools of blocks: best fit, splitting, joining; what the caching allocators share."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from tightfit.allocators.base import Allocator, Block
from tightfit.errors import BooksError


@dataclass(eq=False)
class Pool:
    """The blocks of one size class: all heads of segments, and the free blocks by size.

    Among free blocks of one size the lowest address is taken, as PyTorch does: the same requests
    always leave the same segments.
    """

    split_above: int
    heads: list[Block] = field(default_factory=list)
    _free: list[tuple[int, int]] = field(default_factory=list)
    _by_offset: dict[int, Block] = field(default_factory=dict)

    def find(self, size: int) -> Block | None:
        """The smallest free block of at least `size` bytes, taken off the free list."""
        at = bisect_left(self._free, (size, -1))
        if at == len(self._free):
            return None
        _, key = self._free.pop(at)
        block = self._by_offset.pop(key)
        block.free = False
        return block

    def put(self, block: Block) -> None:
        """Mark free, join with free neighbours, list it."""
        before, after = block.before, block.after
        if before is not None and before.free:
            self.unlist(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.free:
            self.unlist(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        block.free = True
        insort(self._free, (block.size, block.offset))
        self._by_offset[block.offset] = block

    def unlist(self, block: Block) -> None:
        """Take a free block off the free list."""
        self._free.pop(bisect_left(self._free, (block.size, block.offset)))
        del self._by_offset[block.offset]
        block.free = False

    def cut(self, block: Block, size: int) -> Block:
        """Keep `size` bytes of `block` and list the rest, if the rest is worth keeping."""
        rest = block.size - size
        if rest > self.split_above:
            tail = Block(block.offset + size, rest, self, False, block, block.after)
            if block.after is not None:
                block.after.before = tail
            block.after, block.size = tail, size
            self.put(tail)
        return block

    def free_blocks(self) -> list[Block]:
        """Every free block, in no order."""
        return list(self._by_offset.values())

    def blocks(self) -> Iterator[Block]:
        """Every block, in address order within each segment."""
        for head in self.heads:
            block: Block | None = head
            while block is not None:
                yield block
                block = block.after


class PooledAllocator(Allocator):
    """What the caching allocators share: pools, and books that can be proven."""

    pools: tuple[Pool, ...]

    def check(self) -> None:
        """Blocks tile their segments; both totals are the sums of their blocks."""
        used = free = 0
        for pool in self.pools:
            for block in pool.blocks():
                after = block.after
                if after is not None and block.offset + block.size > after.offset:
                    raise BooksError(f"blocks overlap at offset {after.offset}")
                if block.free:
                    free += block.size
                else:
                    used += block.used
                    free += block.padding
        if used != self.allocated:
            raise BooksError(f"blocks in use add up to {used}, allocated says {self.allocated}")
        if used + free != self.reserved:
            raise BooksError(f"all blocks add up to {used + free}, reserved says {self.reserved}")
