"""A figure, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Source = Literal["measured", "predicted", "table"]
"""Seen on this machine or in the file itself · worked out · from a list of typical values."""


@dataclass(frozen=True)
class Figure:
    """An amount of memory.

    Attributes:
        bytes: None is unknown; nothing is ever summed up as if it were 0 without saying so.
        source: how it was found.
    """

    bytes: int | None
    source: Source = "predicted"

    def __post_init__(self) -> None:
        """No memory is negative."""
        if self.bytes is not None and self.bytes < 0:
            raise ValueError(f"a figure of {self.bytes} bytes is below 0")

    @property
    def known(self) -> int:
        """The bytes, 0 where they are unknown: whoever uses this says that it is not predicted."""
        return self.bytes or 0


@dataclass(frozen=True)
class Rate:
    """So many bytes, or floating point operations, a second.

    Attributes:
        per_second: above 0; None is unknown.
        source: how it was found.
    """

    per_second: float | None
    source: Source = "table"

    def __post_init__(self) -> None:
        """Nothing takes for ever."""
        if self.per_second is not None and not self.per_second > 0:
            raise ValueError(f"a rate of {self.per_second} a second is not above 0")

    def seconds(self, amount: float | None) -> float | None:
        """How long `amount` takes; None where either is unknown."""
        if amount == 0:
            return 0.0
        if amount is None or self.per_second is None:
            return None
        return amount / self.per_second


NOTHING = Figure(0, "measured")
UNKNOWN = Figure(None)
UNKNOWN_RATE = Rate(None)


def weakest(sources: Iterable[Source]) -> Source:
    """The source of a figure that was worked out from others."""
    found = set(sources)
    if "table" in found:
        return "table"
    return "predicted" if "predicted" in found else "measured"
