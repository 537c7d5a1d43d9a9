"""Everything in a trace, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from typing import Any

from tightfit.report.modules import modules
from tightfit.report.trace_file import Trace

_FIRST = ("t", "event")


def as_csv(trace: Trace) -> str:
    """A line for each event; a column for each figure that any of them has.

    What is not a plain value stands in its cell as JSON; what an event does not have, or is not
    known, is an empty cell.
    """
    names = dict.fromkeys(_FIRST)
    for event in trace.events:
        names.update(dict.fromkeys(event))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    for event in trace.events:
        writer.writerow({name: _cell(value) for name, value in event.items()})
    return text.getvalue()


def as_json(trace: Trace) -> str:
    """The header, the events and the rows of `--modules`, as one JSON object."""
    return json.dumps(
        {
            "header": trace.header,
            "truncated": trace.truncated,
            "dropped": trace.dropped,
            "peak_allocated_bytes": trace.peak_allocated_bytes,
            "peak_reserved_bytes": trace.peak_reserved_bytes,
            "events": list(trace.events),
            "modules": [asdict(row) for row in modules(trace)],
        },
        indent=2,
    )


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, (dict, list, bool)):
        return json.dumps(value, separators=(",", ":"))
    return value
