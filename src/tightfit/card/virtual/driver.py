"""What stands behind an allocator of a virtual card: the memory, and who holds it."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.card.virtual.faults import Faults


@dataclass
class Driver:
    """Grants and takes back memory, in bytes.

    Attributes:
        total: what the card has.
        context: what the device context takes off it.
        others: what other programs hold.
        faults: the switches of the card.
        cap: this process may not reserve more; None is no limit.
        reserved: what this process holds.
        spilled: the most that was ever granted over the card's size, in spill mode.
    """

    total: int
    context: int
    others: int
    faults: Faults
    cap: int | None = None
    reserved: int = 0
    spilled: int = 0

    @property
    def free(self) -> int:
        """What nobody holds; negative while spilled."""
        return self.total - self.context - self.others - self.reserved

    @property
    def left(self) -> int:
        """What this process may still reserve."""
        by_cap = self.free if self.cap is None else self.cap - self.reserved
        return max(0, min(self.free, by_cap))

    def grow(self, size: int) -> bool:
        """Reserve `size` bytes more; False means refused."""
        if self.cap is not None and self.reserved + size > self.cap:
            return False
        over = size - self.free
        if over > 0 and not self.faults.spill:
            return False
        self.spilled = max(self.spilled, over)
        self.reserved += size
        return True

    def shrink(self, size: int) -> None:
        """Take `size` bytes back."""
        self.reserved -= size
