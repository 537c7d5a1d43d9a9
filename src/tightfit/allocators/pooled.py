"""Models of memory allocators: which bytes are reserved for the bytes that are allocated.

Four models behind one face. `ExactAllocator` rounds to 512 bytes and reserves nothing more.
`NativeAllocator` follows the published constants of PyTorch's caching allocator: two pools,
2 MiB and 20 MiB segments, best fit, splitting, and a cache that is given back before a request
is refused. `ArenaAllocator` is an address range that grows by a grain, which is how expandable
segments and cudaMallocAsync look from outside (32 MiB steps were measured for the latter).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tightfit.errors import BooksError
from tightfit.units import MIB

ALIGNMENT = 512
SMALL_LIMIT = 1 * MIB
SMALL_SEGMENT = 2 * MIB
LARGE_LIMIT = 10 * MIB
LARGE_SEGMENT = 20 * MIB
LARGE_ROUNDING = 2 * MIB
ASYNC_GRAIN = 32 * MIB


class Full(Exception):
    """The driver refused, and giving back the cache did not help."""


def round_up(size: int, step: int) -> int:
    """`size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


@dataclass(eq=False)
class Block:
    """Bytes [offset, offset + size) of a segment, in use or free, linked to its neighbours."""

    offset: int
    size: int
    pool: _Pool | None = None
    free: bool = False
    before: Block | None = None
    after: Block | None = None


class Allocator(ABC):
    """Hands out blocks, and takes the memory for them from a driver in its own steps.

    Args:
        grow: asks the driver for so many bytes; False means refused.
        shrink: gives so many bytes back to the driver.
    """

    def __init__(self, grow: Callable[[int], bool], shrink: Callable[[int], None]) -> None:
        self._grow = grow
        self._shrink = shrink
        self.allocated = 0
        self.reserved = 0
        self.retries = 0

    def take(self, size: int) -> Block:
        """A block of at least `size` bytes. Raises `Full`."""
        rounded = max(ALIGNMENT, round_up(size, ALIGNMENT))
        block = self._place(rounded)
        if block is None and self.trim():
            self.retries += 1
            block = self._place(rounded)
        if block is None:
            raise Full
        self.allocated += block.size
        return block

    def give(self, block: Block) -> None:
        """Take a block back."""
        self.allocated -= block.size
        self._return(block)

    @abstractmethod
    def trim(self) -> int:
        """Give unused memory back to the driver; the number of bytes that went."""

    @abstractmethod
    def check(self) -> None:
        """Prove the books. Raises `BooksError`."""

    @abstractmethod
    def _place(self, size: int) -> Block | None: ...

    @abstractmethod
    def _return(self, block: Block) -> None: ...

    def _reserve(self, size: int) -> bool:
        if not self._grow(size):
            return False
        self.reserved += size
        return True

    def _release(self, size: int) -> None:
        self.reserved -= size
        self._shrink(size)


class ExactAllocator(Allocator):
    """Reserved equals allocated: the plain `virtual:SIZE` card."""

    def _place(self, size: int) -> Block | None:
        return Block(0, size) if self._reserve(size) else None

    def _return(self, block: Block) -> None:
        self._release(block.size)

    def trim(self) -> int:
        """Nothing is ever cached."""
        return 0

    def check(self) -> None:
        """Reserved and allocated are one figure."""
        if self.allocated != self.reserved:
            raise BooksError(f"allocated is {self.allocated} but reserved is {self.reserved}")


@dataclass(eq=False)
class _Pool:
    """The blocks of one size class: all heads of segments, and the free blocks by size."""

    split_above: int
    heads: list[Block] = field(default_factory=list)
    _free: list[tuple[int, int]] = field(default_factory=list)
    _by_id: dict[int, Block] = field(default_factory=dict)

    def find(self, size: int) -> Block | None:
        """The smallest free block of at least `size` bytes, taken off the free list."""
        at = bisect_left(self._free, (size, -1))
        if at == len(self._free):
            return None
        _, key = self._free.pop(at)
        block = self._by_id.pop(key)
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
        insort(self._free, (block.size, id(block)))
        self._by_id[id(block)] = block

    def unlist(self, block: Block) -> None:
        """Take a free block off the free list."""
        self._free.pop(bisect_left(self._free, (block.size, id(block))))
        del self._by_id[id(block)]
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
        return list(self._by_id.values())

    def blocks(self) -> Iterator[Block]:
        """Every block, in address order within each segment."""
        for head in self.heads:
            block: Block | None = head
            while block is not None:
                yield block
                block = block.after


class _PooledAllocator(Allocator):
    """What the caching allocators share: pools, and books that can be proven."""

    pools: tuple[_Pool, ...]

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


class NativeAllocator(_PooledAllocator):
    """PyTorch's caching allocator, by its published constants."""

    def __init__(self, grow: Callable[[int], bool], shrink: Callable[[int], None]) -> None:
        super().__init__(grow, shrink)
        self._small = _Pool(split_above=ALIGNMENT - 1)
        self._large = _Pool(split_above=SMALL_LIMIT)
        self.pools = (self._small, self._large)

    def _place(self, size: int) -> Block | None:
        pool = self._small if size <= SMALL_LIMIT else self._large
        block = pool.find(size)
        if block is None:
            segment = self._segment(size)
            if not self._reserve(segment):
                return None
            block = Block(0, segment, pool)
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


class ArenaAllocator(_PooledAllocator):
    """Address ranges that grow by a grain and give whole free grains back.

    Args:
        grains: (largest request, grain) per range, in rising order.
    """

    def __init__(
        self,
        grow: Callable[[int], bool],
        shrink: Callable[[int], None],
        *,
        grains: tuple[tuple[int, int], ...],
    ) -> None:
        super().__init__(grow, shrink)
        self._classes = tuple(
            (limit, grain, _Pool(split_above=ALIGNMENT - 1)) for limit, grain in grains
        )
        self.pools = tuple(pool for _, _, pool in self._classes)
        self._ends = dict.fromkeys(map(id, self.pools), 0)
        self._growing: dict[int, Block | None] = dict.fromkeys(map(id, self.pools), None)

    def _place(self, size: int) -> Block | None:
        grain, pool = next((g, p) for limit, g, p in self._classes if size <= limit)
        block = pool.find(size) or self._extend(pool, grain, size)
        return None if block is None else pool.cut(block, size)

    def _return(self, block: Block) -> None:
        assert block.pool is not None
        block.pool.put(block)

    def trim(self) -> int:
        """Whole grains inside free blocks go back; their addresses are not used again."""
        gone = 0
        for _, grain, pool in self._classes:
            for block in pool.free_blocks():
                first = round_up(block.offset, grain)
                last = (block.offset + block.size) // grain * grain
                if last > first:
                    gone += last - first
                    self._punch(pool, block, first, last)
        if gone:
            self._release(gone)
        return gone

    def _extend(self, pool: _Pool, grain: int, size: int) -> Block | None:
        """Grow the range; a free block at its very end counts toward the request."""
        head = self._growing[id(pool)]
        tail = _last(head) if head is not None else None
        spare = tail.size if tail is not None and tail.free else 0
        more = round_up(size - spare, grain)
        if not self._reserve(more):
            return None
        end = self._ends[id(pool)]
        self._ends[id(pool)] = end + more
        if tail is not None and tail.free:
            pool.unlist(tail)
            tail.size += more
            return tail
        block = Block(end, more, pool, False, tail)
        if tail is not None:
            tail.after = block
        else:
            pool.heads.append(block)
            self._growing[id(pool)] = block
        return block

    def _punch(self, pool: _Pool, block: Block, first: int, last: int) -> None:
        """Take [first, last) out of a free block; the segment falls apart into two."""
        before, after, start, end = (
            block.before,
            block.after,
            block.offset,
            block.offset + block.size,
        )
        grows = self._growing[id(pool)] is _first(block)
        pool.unlist(block)
        left = Block(start, first - start, pool, False, before) if first > start else None
        right = Block(last, end - last, pool, False, None, after) if end > last else None
        if before is None:
            pool.heads.remove(block)
            if left is not None:
                pool.heads.append(left)
        else:
            before.after = left
        if after is not None:
            after.before = right
        head = right or after
        if head is not None:
            pool.heads.append(head)
        if grows:
            self._growing[id(pool)] = head
        for piece in (left, right):
            if piece is not None:
                pool.put(piece)


def expandable(grow: Callable[[int], bool], shrink: Callable[[int], None]) -> ArenaAllocator:
    """Expandable segments: 2 MiB pages for small requests, 20 MiB for the others."""
    return ArenaAllocator(
        grow, shrink, grains=((SMALL_LIMIT, SMALL_SEGMENT), (2**62, LARGE_SEGMENT))
    )


def malloc_async(
    grow: Callable[[int], bool], shrink: Callable[[int], None], *, grain: int = ASYNC_GRAIN
) -> ArenaAllocator:
    """cudaMallocAsync as seen from outside: one range, 32 MiB steps."""
    return ArenaAllocator(grow, shrink, grains=((2**62, grain),))


def _first(block: Block) -> Block:
    while block.before is not None:
        block = block.before
    return block


def _last(block: Block) -> Block:
    while block.after is not None:
        block = block.after
    return block
