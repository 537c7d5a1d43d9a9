"""Rows of `pipeline.py`: what they hold, what is asked of them, the file and a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pipeline_jobs import EVERY, OURS, PEERS, Job
from rows import Row

from tightfit.units import GIB

FASTER = 1.6
"""Times the best peer that finishes, where the link binds."""
EXPLAINED = 3.0
"""Per cent of the whole that the sum of stages may be off."""
_NOTE = 70


@dataclass(frozen=True)
class PipelineRow(Row):
    """One pipeline, end to end; `seconds` are of one call that gives pictures.

    Attributes:
        load_seconds: until the pipeline was on the host.
        setup_seconds: until it could be called.
        first_seconds: of the first call.
        step_seconds: of a step, where each was waited for; of the resident row.
        activations_bytes: that a step takes beside weights; likewise.
        link_rate: W, bytes a second from pinned memory.
        copied_bytes: to the card in one call of ours, of networks that stream.
        bound: ``link-bound`` or ``compute-bound``, by the denoiser's steps.
        stages: seconds of the call by part.
        digest: of the latents that the VAE is given.
    """

    load_seconds: float | None = None
    setup_seconds: float | None = None
    first_seconds: float | None = None
    step_seconds: float | None = None
    activations_bytes: int | None = None
    link_rate: int | None = None
    copied_bytes: int | None = None
    bound: str | None = None
    stages: dict[str, float] = field(default_factory=dict)
    digest: str | None = None

    @property
    def explained(self) -> float | None:
        """Per cent of the call that its stages are in sum."""
        if not self.stages or not self.seconds:
            return None
        return 100 * sum(self.stages.values()) / self.seconds

    def said(self, *words: str) -> PipelineRow:
        """With more in its note."""
        return replace(self, note="; ".join(filter(None, (self.note, *words))))


def bound_of(*, step: float, weights: int, room: int, rate: int, passes: float) -> str:
    """Whether a step waits for copies: ``B/W > C``, with B what the room does not hold."""
    streamed = max(0, weights - room)
    return "link-bound" if passes * streamed / rate > step else "compute-bound"


def compared(rows: Iterable[PipelineRow]) -> list[PipelineRow]:
    """Each beside ours of its job: whether it had the same latents."""
    found = list(rows)
    ours = {row.job: row for row in found if row.who == OURS and row.completed}
    return [
        row
        if row.digest is None or row.job not in ours
        else replace(row, bit_equal=row.digest == ours[row.job].digest)
        for row in found
    ]


def verdicts(job: Job, rows: Iterable[PipelineRow]) -> Iterator[tuple[str, bool | None]]:
    """What the job asks for, and whether it is met; None where it was not measured."""
    mine = {row.who: row for row in rows if row.job == job.name}
    ours = mine.get(OURS)
    if ours is None or not ours.completed or ours.seconds is None:
        yield "finishes", None if ours is None else False
        return
    reserved = ours.peak_reserved_bytes
    held = None if reserved is None else reserved <= job.bytes
    yield f"{_gib(reserved)} GiB reserved (<= {_gib(job.bytes)})", held
    peers = [mine[who].seconds for who in PEERS if who in mine and mine[who].completed]
    times = [seconds for seconds in peers if seconds is not None]
    if times:
        least = FASTER if ours.bound == "link-bound" else 1.0
        faster = min(times) / ours.seconds
        yield f"{faster:.2f} x as fast as the best peer (>= {least}, {ours.bound})", faster >= least
    if ours.explained is not None:
        words = f"stages explain {ours.explained:.1f} % of the call (within {EXPLAINED:g})"
        yield words, abs(ours.explained - 100) <= EXPLAINED


def summary(jobs: Iterable[Job], rows: Sequence[PipelineRow]) -> str:
    """A line for each job; what is not met stands in bold."""
    lines = []
    for job in jobs:
        told = [
            words if holds else f"**{words}**" if holds is False else f"{words}: not measured"
            for words, holds in verdicts(job, rows)
        ]
        lines.append(f"- {job.name}: {'; '.join(told)}")
    return "\n".join(lines)


def in_order(rows: Iterable[PipelineRow], names: Sequence[str]) -> list[PipelineRow]:
    """By job, then the resident one, ours, the peers."""

    def key(row: PipelineRow) -> tuple[int, int]:
        place = names.index(row.job) if row.job in names else len(names)
        return place, EVERY.index(row.who) if row.who in EVERY else len(EVERY)

    return sorted(rows, key=key)


def read_rows(path: Path) -> tuple[list[PipelineRow], dict[str, Any], dict[str, Any]]:
    """Rows, machine and versions of a file that `rows.write` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    known = {each.name for each in fields(PipelineRow)}
    rows = []
    for each in content["rows"]:
        row = {name: value for name, value in each.items() if name in known}
        row["all_seconds"] = tuple(row["all_seconds"])
        rows.append(PipelineRow(**{**row, "attempts": ()}))
    return rows, content["machine"], content["versions"]


def table(rows: Iterable[PipelineRow]) -> str:
    """A Markdown table; sizes in GiB."""
    head = ("job", "who", "seconds", "first", "set-up", "load", "reserved", "allocated", "latents")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        seconds = _text(row.seconds) if row.completed else f"**nothing**: {row.note[:_NOTE]}"
        latents = {True: "bit-equal", False: "other bits", None: ""}[row.bit_equal]
        cells = (
            row.job,
            row.who,
            seconds,
            _text(row.first_seconds),
            _text(row.setup_seconds),
            _text(row.load_seconds),
            _gib(row.peak_reserved_bytes),
            _gib(row.peak_allocated_bytes),
            latents,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _text(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.2f}"


def _gib(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size / GIB:.2f}" if size >= GIB // 16 else f"{size / GIB:.4f}"
