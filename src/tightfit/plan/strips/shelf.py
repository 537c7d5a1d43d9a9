"""Places in one piece of memory, for what comes and goes."""

from __future__ import annotations

ALIGNMENT = 512


class Shelf:
    """Hands out offsets, the smallest gap that fits first; it grows where none does.

    Attributes:
        top: the bytes that it had to have.
    """

    def __init__(self) -> None:
        self.top = 0
        self._gaps: list[tuple[int, int]] = []  # (offset, size), by offset, never adjacent

    def take(self, size: int) -> int:
        """The offset of `size` bytes."""
        size = rounded(size)
        fitting = [gap for gap in self._gaps if gap[1] >= size]
        if fitting:
            offset, length = min(fitting, key=lambda gap: gap[1])
            self._gaps.remove((offset, length))
            if length > size:
                self._insert(offset + size, length - size)
            return offset
        if self._gaps and sum(self._gaps[-1]) == self.top:
            offset, _ = self._gaps.pop()
            self.top = offset + size
            return offset
        self.top += size
        return self.top - size

    def give(self, offset: int, size: int) -> None:
        """They are free again."""
        if size:
            self._insert(offset, rounded(size))

    def _insert(self, offset: int, size: int) -> None:
        merged = []
        for begin, length in self._gaps:
            if begin + length == offset:
                offset, size = begin, length + size
            elif offset + size == begin:
                size += length
            else:
                merged.append((begin, length))
        merged.append((offset, size))
        self._gaps = sorted(merged)


def rounded(size: int) -> int:
    """Up to a multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT
