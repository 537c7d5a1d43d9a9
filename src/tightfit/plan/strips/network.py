"""A network as numbers: what each step reads and makes, and how large that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tightfit.plan.strips.reach import Reach


class Kind(Enum):
    """How a step can be done."""

    LOCAL = "local"
    """Some rows of what it makes need some rows of what it reads."""
    SUMS = "sums"
    """It adds up something over all rows, strip by strip."""
    WHOLE = "whole"
    """It needs all there is at once."""
    CONSTANT = "constant"
    """It depends on no input."""


@dataclass(frozen=True, slots=True)
class Use:
    """A value that a step reads.

    Attributes:
        value: its number.
        reach: which rows; None is all of them at once.
    """

    value: int
    reach: Reach | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One operator.

    Attributes:
        kind: how it can be done.
        uses: what it reads, but for weights.
        makes: numbers of what it makes.
        scratch: bytes it takes beside, for each byte that it reads and makes.
        flops: in all, one multiply-add as two.
        spare: rows that it makes beside those that are wanted: of any strip, and of one at an edge.
    """

    kind: Kind
    uses: tuple[Use, ...]
    makes: tuple[int, ...]
    scratch: float = 0.0
    flops: int = 0
    spare: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a value is.

    Attributes:
        bytes: of all of it.
        rows: along the axis that is cut; 0 where it has none.
        memory: equal for values that share memory.
        elements: in all.
    """

    bytes: int
    rows: int = 0
    memory: int = -1
    elements: int = 0

    def of(self, rows: int) -> int:
        """Bytes of so many rows."""
        return self.bytes if not self.rows else -(-self.bytes * rows // self.rows)


@dataclass(frozen=True)
class Network:
    """Steps in the order of the program.

    Attributes:
        extents: by number of the value.
        given: the input. result: the output.
    """

    steps: Sequence[Step]
    extents: Sequence[Extent]
    given: int
    result: int
