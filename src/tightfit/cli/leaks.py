"""`tightfit leaks`: what stayed after a job, and who holds it, as a trace has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tightfit.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tightfit.watch.leaks.leak import Leak

_FOUND = 1
"""The exit code where something stayed."""


def leaks(
    source: Annotated[
        Path, typer.Argument(metavar="TRACE|OOM.json", help="What --trace, or a failed job, wrote.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON alone: sizes in bytes, null for unknown.")
    ] = False,
) -> None:
    """Show what stayed on the card, with the chain to who holds it. Ends with 1 where anything did.

    A trace has leaks where somebody looked for them: `tightfit.leakcheck` does.
    """
    from tightfit.report.trace_file import read_trace

    found = _found(read_trace(source).of("leak"), source)
    if as_json:
        typer.echo(json.dumps({"version": 1, "leaks": [each.as_event() for each in found]}))
    else:
        for line in _lines(found):
            typer.echo(line)
    if found:
        raise typer.Exit(_FOUND)


def _found(events: Iterable[dict[str, Any]], source: Path) -> list[Leak]:
    """The largest first. Raises `InputError` for an event that is no leak of ours."""
    from tightfit.watch.leaks.leak import Leak

    try:
        found = [Leak.of_event(event) for event in events]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{source} has a leak that cannot be read: {error!r}.") from error
    return sorted(found, key=lambda leak: -leak.bytes)


def _lines(found: list[Leak]) -> list[str]:
    from tightfit.units import format_bytes
    from tightfit.watch.leaks.leak import ADVICE

    if not found:
        return ["No leaks are in it."]
    size = format_bytes(sum(leak.bytes for leak in found))
    kinds = dict.fromkeys(leak.kind for leak in found)
    return [
        f"{size} stayed in {len(found)} {'storage' if len(found) == 1 else 'storages'}:",
        *(f"- {leak.line()}" for leak in found),
        *(f"{kind}: {ADVICE[kind]}." for kind in kinds),
    ]
