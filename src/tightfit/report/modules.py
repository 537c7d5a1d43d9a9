"""Block by block, how reserved moved against allocated while weights were placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tightfit.report.trace_file import Trace
from tightfit.units import format_bytes

_GREW = 3
"""Blocks that are named for the slack, those that added most."""


@dataclass(frozen=True)
class Row:
    """A block that was placed, or the slots that streamed ones pass through; sizes in bytes.

    Attributes:
        n: how many were placed before; None for slots.
        name: of the block, with its network.
        state: ``resident``, ``streamed``, ``packed``, or ``ring``.
        module: bytes of its own.
        reserved, allocated: of the card, after it; None where the card keeps no books.
        grew: reserved less what it was after the row before.
        loosened: likewise for the slack.
    """

    n: int | None
    name: str
    state: str
    module: int
    reserved: int | None
    allocated: int | None
    grew: int | None
    loosened: int | None

    @property
    def slack(self) -> int | None:
        """Reserved less allocated."""
        return None if self.reserved is None else self.reserved - (self.allocated or 0)


def modules(trace: Trace) -> tuple[Row, ...]:
    """A row for each `placed` and `ring` event, in order.

    Growth is from the row before; where a network begins to be placed, from the last look before.
    """
    rows: list[Row] = []
    reserved = slack = 0
    seen: tuple[int, int] | None = None
    for event in trace.of("memory", "plan", "placed", "ring"):
        if event["event"] == "memory":
            taken = event.get("reserved_bytes") or 0
            seen = taken, taken - event["allocated_bytes"]
            continue
        if event["event"] == "plan":
            reserved, slack = seen or (reserved, slack)
            continue
        now, held = event.get("reserved_bytes"), event.get("allocated_bytes")
        loose = None if now is None else now - (held or 0)
        rows.append(
            Row(
                n=event.get("n"),
                name=_name(event),
                state=event.get("state", "ring"),
                module=event["bytes"],
                reserved=now,
                allocated=held,
                grew=None if now is None else now - reserved,
                loosened=None if loose is None else loose - slack,
            )
        )
        if now is not None and loose is not None:
            reserved, slack = now, loose
    return tuple(rows)


def table(trace: Trace) -> list[str]:
    """Lines of text: one for each row, then the slack, and the blocks that made it grow.

    The form is that of the loader's trace in a public report, which the fault was found by.
    """
    rows = modules(trace)
    if not rows:
        return ["no block was placed while this trace was written"]
    width = max(len(str(row.n)) for row in rows)
    lines = [_line(row, width) for row in rows]
    if any(event["event"] == "placed" for event in trace.events) and rows[0].n not in (0, None):
        lines.insert(0, f"({rows[0].n} placed before these are not in the trace any more)")
    return [*lines, *_slack(rows, trace)]


def _line(row: Row, width: int) -> str:
    mark = f"[{'-' if row.n is None else row.n:>{width}}]"
    if row.reserved is None:
        return f"{mark} module {format_bytes(row.module)}  {row.name}, {row.state}"
    grew = row.grew or 0
    return (
        f"{mark} reserved {format_bytes(row.reserved)} "
        f"({'-' if grew < 0 else '+'}{format_bytes(abs(grew))}), "
        f"allocated {format_bytes(row.allocated or 0)}, module {format_bytes(row.module)}  "
        f"{row.name}, {row.state}"
    )


def _slack(rows: Sequence[Row], trace: Trace) -> list[str]:
    last = rows[-1]
    if last.slack is None:
        return ["slack: not known; this card keeps no books"]
    allocator = (trace.header.get("card") or {}).get("allocator")
    under = f" under {allocator}" if allocator else ""
    head = (
        f"slack{under}: {format_bytes(last.slack)} (reserved {format_bytes(last.reserved or 0)} "
        f"less allocated {format_bytes(last.allocated or 0)})"
    )
    grown = sorted(
        (row for row in rows if (row.loosened or 0) > 0),
        key=lambda row: row.loosened or 0,
        reverse=True,
    )
    if not grown:
        return [f"{head}; no block made it grow"]
    named = ", ".join(f"{row.name} (+{format_bytes(row.loosened or 0)})" for row in grown[:_GREW])
    more = f", and {len(grown) - _GREW} more" if len(grown) > _GREW else ""
    return [f"{head}; it grew with {named}{more}"]


def _name(event: dict[str, Any]) -> str:
    block = event.get("block", f"ring of {event.get('slots')}")
    network = event.get("network")
    return f"{network}: {block}" if network else str(block)
