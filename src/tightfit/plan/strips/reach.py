"""Which rows of what it reads an operator needs for some rows of what it makes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """Rows ``a`` to ``b`` need rows ``a * up / down - before`` to ``b * up / down + after``.

    Attributes:
        up, down: rows read for each row made, as a fraction.
        before, after: rows more at either end; may be negative.
    """

    up: int = 1
    down: int = 1
    before: int = 0
    after: int = 0

    def needs(self, begin: int, end: int, rows: int) -> tuple[int, int]:
        """The span among `rows` rows; never empty, so that padding has an edge to repeat."""
        low = begin * self.up // self.down - self.before
        high = -(-end * self.up // self.down) + self.after
        low, high = max(low, 0), min(high, rows)
        if low >= high:
            low = min(max(low, 0), rows - 1)
            high = low + 1
        return low, high

    def widened(self, halo: float) -> float:
        """A halo of what is read, in rows of what is made."""
        return (halo + max(self.before, self.after, 0)) * self.down / self.up

    @property
    def resizes(self) -> bool:
        """Whether rows of the two differ in number."""
        return self.up != self.down


SAME = Reach()


def share(rows: int, index: int, count: int) -> tuple[int, int]:
    """The rows of strip `index` of `count`."""
    return rows * index // count, rows * (index + 1) // count
