"""What every model of an allocator answers, and the one that rounds and nothing more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tightfit.errors import BooksError

if TYPE_CHECKING:
    from tightfit.allocators.pools import Pool

ALIGNMENT = 512


class Full(Exception):
    """The driver refused, and giving back the cache did not help."""


def round_up(size: int, step: int) -> int:
    """`size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


@dataclass(eq=False)
class Block:
    """Bytes [offset, offset + size) of a segment, in use or free, linked to its neighbours.

    `freed` counts up: the higher, the later it was given back; 0 where nobody counts.
    """

    offset: int
    size: int
    pool: Pool | None = None
    free: bool = False
    before: Block | None = None
    after: Block | None = None
    freed: int = 0


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
