"""Gauges: what a stage needs beside its weights, at any size."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    """By lines over the size: those of the shipped table, or of a few runs.

    Never falls as the size grows.
    """

    needs: Needs
    source: Source = "table"

    def at(self, size: Size, *, allocator: str) -> Working:
        """The lines at `size`; each was drawn on its own, so that they are put in order here."""
        asked = {"area": size.area, "frames": size.frames, "batch": size.batch}
        reserved = self.needs.reserved.get(allocator)
        least = self.needs.least.get(allocator)
        dry = at_most(self.needs.dry, **asked)
        return _in_order(
            Working(
                dry=dry,
                allocated=at_most(self.needs.allocated, **asked),
                reserved=at_most(reserved, **asked) if reserved is not None else None,
                least=at_most(least, **asked) if least is not None else None,
                flops=self.needs.flops_at(**asked),
                source=self.source,
            )
        )


def scaled(told: Working, *, by: Working, to: Working) -> Working:
    """What lines told, so that where they said `by` they say `to`, which was seen."""
    if told.dry is None or by.dry is None or to.dry is None:
        return told
    return _in_order(
        Working(
            dry=_scaled(told.dry, by.dry, to.dry),
            allocated=_scaled(told.allocated, by.allocated, to.allocated),
            reserved=_scaled(told.reserved, by.reserved, to.reserved),
            least=_scaled(told.least, by.least, to.least),
            flops=told.flops
            if not by.flops or not to.flops or told.flops is None
            else told.flops * to.flops / by.flops,
            source=to.source,
        )
    )


def _scaled(told: int | None, by: int | None, to: int | None) -> int | None:
    if told is None or by is None or to is None:
        return None
    return -(-told * to // max(1, by))


def _in_order(working: Working) -> Working:
    """What is allocated is no less than the tensors in it, nor is what holds that."""
    dry, allocated = working.dry or 0, working.allocated or 0
    allocated = max(dry, allocated)
    least = None if working.least is None else max(allocated, working.least)
    reserved = None if working.reserved is None else max(least or allocated, working.reserved)
    return replace(working, allocated=allocated, least=least, reserved=reserved)


@dataclass(frozen=True)
class NoGauge:
    """For an architecture that is not known: nothing is predicted, and the plan says so."""

    def at(self, size: Size, *, allocator: str) -> Working:
        """Nothing is known."""
        del size, allocator
        return NOTHING_KNOWN
