"""`tightfit rerun`: a job that memory ended, again on a virtual card."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tightfit.cli import options as o
from tightfit.errors import UsageError

if TYPE_CHECKING:
    from tightfit.api.rerunning import Rerun

_NO_MEMORY = 3


def rerun(
    source: Annotated[
        Path, typer.Argument(metavar="OOM.json|TRACE", help="The log that the job left.")
    ],
    card: o.CardName = None,
    vram: o.Vram = None,
    recorded: Annotated[
        bool,
        typer.Option("--recorded", help="Replay what was recorded, also where the job could run."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """Replay a job's memory on a virtual card, and say whether it fits there."""
    if card is None or not card.startswith("virtual:"):
        raise UsageError(
            "Give --card virtual:SIZE, or virtual:NAME, to replay the job's memory on."
        )
    from tightfit.report.trace_file import read_trace

    trace = read_trace(source)
    from tightfit.api.rerunning import rerun as again

    done = again(trace, card=card, vram=vram, recorded=recorded)
    if as_json:
        typer.echo(json.dumps({"version": 1, **asdict(done)}, indent=2))
    else:
        typer.echo("\n".join(_told(done)))
    if not done.fits:
        raise typer.Exit(_NO_MEMORY)


def _told(done: Rerun) -> list[str]:
    from tightfit.units import format_bytes

    peak = done.peak_reserved_bytes
    needs = "" if peak is None else f"{format_bytes(peak)} reserved at the peak"
    budget = f"{format_bytes(done.budget)} may be used"
    verdict = "It fits" if done.fits else "It does not fit"
    if done.way == "recorded":
        what = "allocations" if done.exact else "changes of the sum, for want of single allocations"
        return [
            f"Replayed {done.moves} recorded {what}.",
            f"{verdict} on {done.card}: {needs}; {budget}.",
        ]
    rung = f", {done.rung}" if done.rung else ""
    lines = ["Did the job again, with an input of the same size."]
    lines.append(f"{verdict} on {done.card}{rung}{f': {needs}' if needs else ''}; {budget}.")
    return [*lines, *([done.error] if done.error else [])]
