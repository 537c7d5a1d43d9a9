"""Rows of `vae.py`: what they hold, the limit, what counts as met, the file, and a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rows import Row, Try
from vae_jobs import EVERY, OURS, WHOLE, Job
from vae_trace import Breakdown

from tightfit.units import GIB, MIB

ERROR, FURTHER = 2e-2, 1.1
"""Relative rms from the whole run, and times the whole run's own distance from one in float32."""

_NOTE = 80

Verdict = tuple[str, bool | None]
"""What is asked for, with its figure, and whether it is met; None where it was not measured."""


@dataclass(frozen=True)
class VaeRow(Row):
    """A `Row` of one call; unknown is None.

    Attributes:
        rung: that held.
        exact: what the library says of its result.
        first_seconds: of the first call, which is not among `all_seconds`.
        whole_seconds: C, of the whole run beside it.
        host_peak_bytes: that the process grew by while it was called, its result included.
        host_told_bytes: of host memory that the library says it took.
        fp32_rms_error: relative rms of the difference from a whole run in float32.
        up_bytes, down_bytes: copied to the card and from it in one call.
        compute_seconds, up_seconds, down_seconds, wait_seconds: see `Breakdown`.
        link_rate: W, bytes a second from pinned memory, in the same process.
    """

    rung: str | None = None
    exact: bool | None = None
    first_seconds: float | None = None
    whole_seconds: float | None = None
    host_peak_bytes: int | None = None
    host_told_bytes: int | None = None
    fp32_rms_error: float | None = None
    up_bytes: int | None = None
    down_bytes: int | None = None
    compute_seconds: float | None = None
    up_seconds: float | None = None
    down_seconds: float | None = None
    wait_seconds: float | None = None
    link_rate: int | None = None

    @property
    def ratio(self) -> float | None:
        """Times the whole run."""
        if self.seconds is None or not self.whole_seconds:
            return None
        return self.seconds / self.whole_seconds

    def broken_down(self, seen: Breakdown | None) -> VaeRow:
        """With where its time goes; what is not known stays as it is."""
        if seen is None:
            return self
        return replace(
            self,
            up_bytes=seen.up_bytes,
            down_bytes=seen.down_bytes,
            compute_seconds=seen.compute,
            up_seconds=seen.up,
            down_seconds=seen.down,
            wait_seconds=seen.wait,
        ).said(str(seen))

    def said(self, *words: str) -> VaeRow:
        """With more in its note."""
        return replace(self, note="; ".join(filter(None, (self.note, *words))))


def limit_of(whole: float | None, up: int | None, down: int | None, rate: int | None) -> Any:
    """``max(C, B/W)``: the directions overlap, so B is the larger; None where any is unknown."""
    copied = copying(up, down, rate)
    return None if whole is None or copied is None else max(whole, copied)


def copying(up: int | None, down: int | None, rate: int | None) -> float | None:
    """Seconds that copies alone take, both directions at once."""
    return None if up is None or down is None or not rate else max(up, down) / rate


def beside(
    earlier: Sequence[VaeRow],
    rows: Sequence[VaeRow],
    *,
    then: dict[str, Any],
    now: dict[str, Any],
) -> list[VaeRow]:
    """Rows of an earlier file of jobs that did not run, marked where their source differs."""
    fresh = {row.job for row in rows}
    mark = "" if then == now else f"measured apart, at commit {then.get('commit')}"
    return [row if mark in row.note else row.said(mark) for row in earlier if row.job not in fresh]


def in_order(rows: Iterable[VaeRow], names: Sequence[str]) -> list[VaeRow]:
    """By job, then the whole, ours, the peers."""

    def key(row: VaeRow) -> tuple[int, int]:
        place = names.index(row.job) if row.job in names else len(names)
        return place, EVERY.index(row.who) if row.who in EVERY else len(EVERY)

    return sorted(rows, key=key)


def read_rows(path: Path) -> tuple[list[VaeRow], dict[str, Any], dict[str, Any]]:
    """Rows, machine and versions of a file that `rows.write` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    known = {field.name for field in fields(VaeRow)}
    rows = []
    for each in content["rows"]:
        row = {name: value for name, value in each.items() if name in known}
        row["attempts"] = tuple(
            Try(**{**tried, "tile": tuple(tried["tile"]) if tried["tile"] else None})
            for tried in row["attempts"]
        )
        rows.append(VaeRow(**{**row, "all_seconds": tuple(row["all_seconds"])}))
    return rows, content["machine"], content["versions"]


def verdicts(job: Job, rows: Iterable[VaeRow]) -> Iterator[Verdict]:
    """What the job asks for, and whether it is met; None where it was not measured."""
    mine = {row.who: row for row in rows if row.job == job.name}
    ours, whole = mine.get(OURS), mine.get(WHOLE)
    if ours is None or not ours.completed:
        yield "finishes", False if ours is not None else None
        return
    yield f"exact ({ours.rung})", ours.exact
    reserved = ours.peak_reserved_bytes
    yield (
        f"{_gib(reserved)} GiB reserved (<= {_gib(job.budget)})",
        _at_most(reserved, job.budget),
    )
    if job.bar is not None:
        words = f"{_text(ours.ratio, '.2f')} x the whole's time (<= {job.bar})"
        yield words, _at_most(ours.ratio, job.bar)
        words = f"rms {_text(ours.rms_error, '.1e')} from the whole (<= {ERROR:g})"
        yield words, _at_most(ours.rms_error, ERROR)
    further = None
    if whole is not None and ours.fp32_rms_error is not None and whole.fp32_rms_error:
        further = ours.fp32_rms_error / whole.fp32_rms_error
    if job.bar is not None and job.dtype.itemsize < 4:
        words = f"{_text(further, '.3f')} x as far from float32 as the whole (<= {FURTHER})"
        yield words, _at_most(further, FURTHER)


def summary(jobs: Iterable[Job], rows: Sequence[VaeRow]) -> str:
    """A line for each job; what is not met stands in bold."""
    lines = []
    for job in jobs:
        told = [
            words if holds else f"**{words}**" if holds is False else f"{words}: not measured"
            for words, holds in verdicts(job, rows)
        ]
        lines.append(f"- {job.name}: {'; '.join(told)}")
    return "\n".join(lines)


def table(rows: Iterable[VaeRow]) -> str:
    """A Markdown table; sizes in GiB."""
    head = (
        "job",
        "who",
        "done by",
        "seconds",
        "x whole",
        "limit",
        "reserved",
        "allocated",
        "host",
        "rms error",
        "from fp32",
    )
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = (
            row.job,
            row.who,
            (row.rung or "") if row.completed else f"**nothing**: {row.note[:_NOTE]}",
            _text(row.seconds, ".3f"),
            _text(row.ratio, ".2f"),
            _text(row.limit_seconds, ".3f"),
            _gib(row.peak_reserved_bytes),
            _gib(row.peak_allocated_bytes),
            _gib(row.host_peak_bytes),
            "0 (bit-equal)" if row.bit_equal else _text(row.rms_error, ".2e"),
            _text(row.fp32_rms_error, ".2e"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _text(figure: float | None, form: str) -> str:
    return "" if figure is None else format(figure, form)


def _gib(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size / GIB:.2f}" if size >= 64 * MIB else f"{size / GIB:.4f}"


def _at_most(figure: float | None, bar: float) -> bool | None:
    return None if figure is None else figure <= bar
