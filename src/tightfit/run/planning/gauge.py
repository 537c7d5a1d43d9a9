"""Gauges: what a stage needs beside its weights, at any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tightfit.plan.figure import Source
from tightfit.plan.size import Size
from tightfit.weigh.lines import at_most
from tightfit.weigh.table import Needs


@dataclass(frozen=True)
class Working:
    """What one call needs beside weights, in bytes; None what is not known.

    Attributes:
        dry: new tensors alone.
        allocated: with the scratch inside operators.
        reserved: what the allocator takes for that where nothing bounds it.
        least: the least limit under which the allocator gets by.
        at: the operator at the peak.
        flops: floating-point operations, a multiply-add as two.
        source: ``table`` or ``predicted``.
    """

    dry: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    least: int | None = None
    at: str | None = None
    flops: float | None = None
    source: Source = "predicted"


NOTHING_KNOWN = Working()


class Gauge(Protocol):
    """Tells what a stage needs; asked for many sizes."""

    def at(self, size: Size, *, allocator: str) -> Working:
        """At `size`, under `allocator`."""


@dataclass(frozen=True)
class TableGauge:
    """By the shipped table. Never falls as the size grows."""

    needs: Needs

    def at(self, size: Size, *, allocator: str) -> Working:
        """The lines of the table at `size`."""
        asked = {"area": size.area, "frames": size.frames, "batch": size.batch}
        reserved = self.needs.reserved.get(allocator)
        least = self.needs.least.get(allocator)
        return Working(
            dry=at_most(self.needs.dry, **asked),
            allocated=at_most(self.needs.allocated, **asked),
            reserved=at_most(reserved, **asked) if reserved is not None else None,
            least=at_most(least, **asked) if least is not None else None,
            flops=self.needs.flops_at(**asked),
            source="table",
        )


@dataclass(frozen=True)
class NoGauge:
    """For an architecture that is not known: nothing is predicted, and the plan says so."""

    def at(self, size: Size, *, allocator: str) -> Working:
        """Nothing is known."""
        del size, allocator
        return NOTHING_KNOWN
