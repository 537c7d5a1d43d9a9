"""Traces made by hand, for whoever shows them."""

from __future__ import annotations

from typing import Any

from tightfit.report.trace_file import Trace

MIB = 2**20


def trace(*events: dict[str, Any], **header: Any) -> Trace:
    """Of these events, a second apart where they do not say when."""
    told = tuple({"t": float(at), **event} for at, event in enumerate(events))
    return Trace({"tightfit_trace": 2, **header}, told)


def placed(n: int, module: int, reserved: int, allocated: int, **more: Any) -> dict[str, Any]:
    """A block that stays; sizes in MiB."""
    return {
        "event": "placed",
        "n": n,
        "block": f"blocks.{n}",
        "bytes": module * MIB,
        "state": "resident",
        "reserved_bytes": reserved * MIB,
        "allocated_bytes": allocated * MIB,
        "network": "transformer",
        **more,
    }
