"""One ledger: every line of what is taken, and the proof that it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tightfit.errors import BooksError
from tightfit.plan.figure import Figure
from tightfit.units import format_bytes

OURS = (
    "held",
    "weights_resident",
    "weights_idle",
    "ring",
    "conversion",
    "scratch",
    "input",
    "activations",
    "library_workspaces",
    "slack",
)
"""What the budget bounds: reserved memory and the workspaces of libraries."""
CARD = ("context", "held_by_others", "reserve")
"""What comes off the card beside it."""
HOST = ("host_masters", "host_pinned_real", "host_activations")
"""What host memory bounds."""


@dataclass(frozen=True)
class Ledger:
    """Lines in the order of `OURS` and `CARD`.

    Attributes:
        lines: name → figure.
        budget, total: what the sums may come to.
    """

    lines: Mapping[str, Figure]
    budget: int
    total: int

    def __post_init__(self) -> None:
        """Bring the lines into their order; refuse one that is not in the books."""
        unknown = set(self.lines) - {*OURS, *CARD}
        if unknown:
            raise ValueError(f"no such line: {', '.join(sorted(unknown))}")
        ordered = {name: self.lines[name] for name in (*OURS, *CARD) if name in self.lines}
        object.__setattr__(self, "lines", MappingProxyType(ordered))

    def of(self, *names: str) -> int | None:
        """The sum of these lines; None if one of them is unknown."""
        figures = [self.lines[name].bytes for name in names if name in self.lines]
        known = [size for size in figures if size is not None]
        return sum(known) if len(known) == len(figures) else None

    @property
    def ours(self) -> int:
        """What the budget has to hold, as far as it is known."""
        return sum(self.lines[name].known for name in OURS if name in self.lines)

    @property
    def all(self) -> int:
        """What the card has to hold, as far as it is known."""
        return sum(figure.known for figure in self.lines.values())

    @property
    def unknown(self) -> tuple[str, ...]:
        """Lines that are in no sum."""
        return tuple(name for name, figure in self.lines.items() if figure.bytes is None)

    @property
    def fits(self) -> bool:
        """Whether both sums hold, as far as they are known."""
        return self.ours <= self.budget and self.all <= self.total

    def check(self) -> None:
        """Prove the books. Raises `BooksError`."""
        for name, sum_, most in (
            ("budget", self.ours, self.budget),
            ("card", self.all, self.total),
        ):
            if sum_ > most:
                raise BooksError(
                    f"the plan takes {format_bytes(sum_)} ({sum_} bytes) of a {name} of "
                    f"{format_bytes(most)} ({most} bytes)"
                )

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Line → bytes and source."""
        return {
            name: {"bytes": figure.bytes, "source": figure.source}
            for name, figure in self.lines.items()
        }
