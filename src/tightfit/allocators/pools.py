"""Pools of blocks: which free one is taken, splitting, joining; what the allocators share."""

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
        self._list(block)

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

    def cut_again(self, block: Block, size: int) -> Block:
        """`cut` for a block that was in use before."""
        return self.cut(block, size)

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

    def _list(self, block: Block) -> None:
        block.free = True
        insort(self._free, (block.size, block.offset))
        self._by_offset[block.offset] = block


@dataclass(eq=False)
class GrowingPool(Pool):
    """Best fit, by the size that a block can grow to: at the end of its range it is the worst fit.

    PyTorch compares blocks of expandable segments so. What lies before addresses that nothing is
    mapped to counts with all of these, so the next larger block is taken where there is one.
    """

    def find(self, size: int) -> Block | None:
        """The smallest free block of at least `size` bytes that cannot grow, else the one that can.

        Taken off the free list.
        """
        at = bisect_left(self._free, (size, -1))
        fitting = [self._by_offset[offset] for _, offset in self._free[at : at + 2]]
        if not fitting:
            return None
        block = fitting[0]
        if block.after is None and fitting[-1].after is not None:
            block = fitting[-1]
        self.unlist(block)
        return block


@dataclass(eq=False)
class StackedPool(Pool):
    """Free blocks lie in stacks, one for each power of two, and what was freed last is taken first.

    A block that was in use before is cut from its high end, and what is left keeps its place.
    """

    _frees: int = 0

    def find(self, size: int) -> Block | None:
        """The latest of the lowest stack that has a block of at least `size` bytes, unlisted."""
        at = bisect_left(self._free, (size, -1))
        if at == len(self._free):
            return None
        above = 1 << self._free[at][0].bit_length()
        stack = self._free[at : bisect_left(self._free, (above, -1))]
        block = max((self._by_offset[offset] for _, offset in stack), key=lambda one: one.freed)
        self.unlist(block)
        return block

    def cut_again(self, block: Block, size: int) -> Block:
        """The high end of `block`, if the rest is worth keeping."""
        rest = block.size - size
        if rest <= self.split_above:
            return block
        high = Block(block.offset + rest, size, self, False, block, block.after)
        if block.after is not None:
            block.after.before = high
        block.after, block.size = high, rest
        super()._list(block)
        return high

    def _list(self, block: Block) -> None:
        super()._list(block)
        self._frees += 1
        block.freed = self._frees


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
                    used += block.size
        if used != self.allocated:
            raise BooksError(f"blocks in use add up to {used}, allocated says {self.allocated}")
        if used + free != self.reserved:
            raise BooksError(f"all blocks add up to {used + free}, reserved says {self.reserved}")
