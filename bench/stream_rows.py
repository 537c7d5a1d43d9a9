"""Rows of `stream.py`: what they hold, the limit, what counts as met, the file, and a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rows import Row
from stream_jobs import MINE, OURS, PACKED, PEERS, RESIDENT, Job

from tightfit.units import GIB

RAW = "tightfit-raw"
"""What `OURS` is called beside packed streaming (`packed_rows`)."""
SHARE, BEST, PINNED, HOST, RATE = 0.95, 1.8, 0.01, 0.005, 3e9
"""Of the room that is used, times faster than the best peer, part that pinned bytes may be off,
seconds of host work a step for 100 streamed pieces, bytes of weights set up in a second."""


Verdict = tuple[str, bool | None]
"""What is asked for, with its figure, and whether it is met; None where it was not measured."""


@dataclass(frozen=True)
class StreamRow(Row):
    """A `Row` of one step; `seconds` of it in steady state, and unknown is None.

    Attributes:
        resident_seconds: C, of the same network on the free card.
        copied_bytes: B, to the card in one step.
        link_rate: W, bytes a second from pinned memory, in the same process.
        resident_bytes: of weights that stay.
        ring_bytes: of slots.
        pieces: that are streamed.
        setup_seconds: from weights on the host to the end of the first step, less one step.
        placing_seconds: of these, what packing, pinning and moving the weights took; dry runs,
            planning and measuring the card are not in it.
        pinned_planned_bytes, pinned_bytes: of host memory that the driver holds in place.
        host_seconds: of our own code in one step, the card being idle.
        stall_seconds: that the card waited for copies, by the trace of a step.
        least_bytes: that any way has to copy: weights that the room leaves no place for.
        unpack_seconds: that unpacking takes in a step, by the card's rate.
        packed_pieces: that are stored packed, streamed or resident.
        digest: of the output.
    """

    resident_seconds: float | None = None
    copied_bytes: int | None = None
    link_rate: int | None = None
    resident_bytes: int | None = None
    ring_bytes: int | None = None
    pieces: int | None = None
    setup_seconds: float | None = None
    placing_seconds: float | None = None
    pinned_planned_bytes: int | None = None
    pinned_bytes: int | None = None
    host_seconds: float | None = None
    stall_seconds: float | None = None
    least_bytes: int | None = None
    unpack_seconds: float | None = None
    packed_pieces: int | None = None
    digest: str | None = None

    @property
    def ratio(self) -> float | None:
        """Times the limit."""
        if self.seconds is None or not self.limit_seconds:
            return None
        return self.seconds / self.limit_seconds

    @property
    def share(self) -> float | None:
        """Of the room, what was reserved at the most."""
        if self.peak_reserved_bytes is None or not self.budget_bytes:
            return None
        return self.peak_reserved_bytes / self.budget_bytes

    @property
    def setup_rate(self) -> float | None:
        """Bytes of weights a second, as they are used, in the whole set-up."""
        return _rate(self.weights_bytes, self.setup_seconds)

    @property
    def placing_rate(self) -> float | None:
        """Bytes of weights a second, as they are used, while they were moved."""
        return _rate(self.weights_bytes, self.placing_seconds)

    @property
    def host_share(self) -> float | None:
        """Seconds of host work for 100 streamed pieces."""
        if self.host_seconds is None or not self.pieces:
            return None
        return 100 * self.host_seconds / self.pieces


def limit_of(compute: float | None, copied: int | None, rate: int | None) -> float | None:
    """``max(C, B/W)``; None where one of them is not known, but that nothing is copied."""
    if compute is None or copied is None:
        return None
    if not copied:
        return compute
    return max(compute, copied / rate) if rate else None


def least_copied(*, weights: int, beside: int, room: int) -> int:
    """What finds no place in `room` beside activations, were a ring to take nothing."""
    return max(0, weights + beside - room)


def finished(rows: Iterable[StreamRow]) -> list[StreamRow]:
    """Each with the limit of its job: by its own link and bytes, or a peer's by ours."""
    rows = list(rows)
    ours = {row.job: row.limit_seconds for row in rows if row.who == OURS}
    return [
        row if row.who in (*MINE, RESIDENT) else replace(row, limit_seconds=ours.get(row.job))
        for row in rows
    ]


_APART = "measured apart, at commit"


def beside(
    earlier: Sequence[StreamRow],
    rows: Sequence[StreamRow],
    *,
    then: dict[str, Any],
    now: dict[str, Any],
) -> list[StreamRow]:
    """All rows, `rows` in place of those of an earlier file, whose others are marked.

    What is kept of the same job was not of the same run, and what is kept of another source says
    which; what says so already is of an earlier one still.
    """
    fresh = {(row.job, row.who) for row in rows}
    again = {row.job for row in rows}
    kept = []
    for row in earlier:
        if (row.job, row.who) in fresh:
            continue
        if _APART in row.note:
            kept.append(row)
            continue
        mark = "" if then == now else f"{_APART} {then.get('commit')}"
        if row.job in again:
            mark = mark or "measured in another run"
        kept.append(row if mark in row.note else replace(row, note=f"{row.note}; {mark}"))
    return [*kept, *rows]


def in_order(rows: Iterable[StreamRow], jobs: Sequence[Job]) -> list[StreamRow]:
    """By job, then resident, ours, the peers."""
    names = [job.name for job in jobs]
    whos = [RESIDENT, OURS, PACKED, RAW, *PEERS]

    def key(row: StreamRow) -> tuple[int, int]:
        place = names.index(row.job) if row.job in names else len(names)
        return place, whos.index(row.who) if row.who in whos else len(whos)

    return sorted(rows, key=key)


def read_rows(path: Path) -> tuple[list[StreamRow], dict[str, Any], dict[str, Any]]:
    """Rows, machine and versions of a file that `rows.write` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    known = {field.name for field in fields(StreamRow)}
    rows = []
    for each in content["rows"]:
        row = {name: value for name, value in each.items() if name in known}
        rows.append(StreamRow(**{**row, "attempts": (), "all_seconds": tuple(row["all_seconds"])}))
    return rows, content["machine"], content["versions"]


def verdicts(job: Job, rows: Iterable[StreamRow]) -> Iterator[Verdict]:
    """What the job asks for, and whether it is met; None where it was not measured."""
    mine = {row.who: row for row in rows if row.job == job.name}
    ours = mine.get(OURS)
    if ours is None:
        yield "measured", None
        return
    ratio, over = ours.ratio, "limit"
    if job.behind:
        over = "resident"
        ratio = None
        if ours.seconds is not None and ours.resident_seconds:
            ratio = ours.seconds / ours.resident_seconds
    yield f"{_text(ratio, '.3f')} x {over} (<= {job.bar})", _at_most(ratio, job.bar)
    yield "bit-equal", ours.bit_equal
    if job.full:
        yield (
            f"{_text(ours.share, '.1%')} of the room (>= {SHARE:.0%})",
            _at_least(ours.share, SHARE),
        )
    if job.peers:
        times = [row.seconds for who, row in mine.items() if who in PEERS and row.seconds]
        faster = min(times) / ours.seconds if times and ours.seconds else None
        yield f"{_text(faster, '.2f')} x the best peer (>= {BEST})", _at_least(faster, BEST)
    off = None
    if ours.pinned_bytes is not None and ours.pinned_planned_bytes:
        off = ours.pinned_bytes / ours.pinned_planned_bytes - 1
    yield (
        f"pinned {_text(off, '+.1%')} off its plan (1%)",
        _at_most(None if off is None else abs(off), PINNED),
    )
    work = None if ours.host_share is None else 1e3 * ours.host_share
    yield (
        f"host work {_text(work, '.2f')} ms for 100 pieces (<= {1e3 * HOST:g})",
        _at_most(ours.host_share, HOST),
    )
    yield set_up(ours)


def set_up(row: StreamRow) -> Verdict:
    """How fast weights were loaded, packed and pinned; the whole set-up is told beside it."""
    rate = row.placing_rate
    words = f"load, pack and pin {_text(rate and rate / 1e9, '.2f')} GB/s (>= {RATE / 1e9:g})"
    whole = f" of {_text(row.setup_seconds, '.1f')} s set-up" if row.setup_seconds else ""
    return words + whole, _at_least(rate, RATE)


def summary(
    jobs: Sequence[Job],
    rows: Sequence[StreamRow],
    judged: Callable[[Job, Sequence[StreamRow]], Iterable[Verdict]] = verdicts,
) -> str:
    """A line for each job; what is not met stands in bold."""
    lines = []
    for job in jobs:
        told = [
            words if holds else f"**{words}**" if holds is False else f"{words}: not measured"
            for words, holds in judged(job, rows)
        ]
        lines.append(f"- {job.name}: {'; '.join(told)}")
    return "\n".join(lines)


def table(rows: Iterable[StreamRow]) -> str:
    """A Markdown table; sizes in GiB, GB/s decimal."""
    head = (
        "job",
        "who",
        "s/step",
        "limit",
        "ratio",
        "streamed",
        "resident",
        "ring",
        "link GB/s",
        "peak reserved",
        "of room",
        "set-up s",
        "placing s",
        "GB/s",
        "pinned",
        "planned",
        "host ms",
        "stall ms",
        "packed",
        "unpack ms",
        "bits",
        "note",
    )
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        cells = (
            row.job,
            row.who,
            _text(row.seconds, ".4f"),
            _text(row.limit_seconds, ".4f"),
            _text(row.ratio, ".3f"),
            _gib(row.copied_bytes),
            _gib(row.resident_bytes),
            _gib(row.ring_bytes),
            _text(row.link_rate and row.link_rate / 1e9, ".1f"),
            _gib(row.peak_reserved_bytes),
            _text(row.share, ".1%"),
            _text(row.setup_seconds, ".1f"),
            _text(row.placing_seconds, ".1f"),
            _text(row.placing_rate and row.placing_rate / 1e9, ".2f"),
            _gib(row.pinned_bytes),
            _gib(row.pinned_planned_bytes),
            _text(row.host_seconds and 1e3 * row.host_seconds, ".2f"),
            _text(row.stall_seconds and 1e3 * row.stall_seconds, ".1f"),
            _text(row.packed_pieces, "d"),
            _text(row.unpack_seconds and 1e3 * row.unpack_seconds, ".1f"),
            _bits(row),
            row.note,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _rate(size: int | None, seconds: float | None) -> float | None:
    return size / seconds if size is not None and seconds and seconds > 0 else None


def _bits(row: StreamRow) -> str:
    if row.bit_equal is None:
        return ""
    return "equal" if row.bit_equal else f"rms {_text(row.rms_error, '.1e')}"


def _text(figure: float | None, form: str) -> str:
    return "" if figure is None else format(figure, form)


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / GIB:.2f}"


def _at_most(figure: float | None, bar: float) -> bool | None:
    return None if figure is None else figure <= bar


def _at_least(figure: float | None, bar: float) -> bool | None:
    return None if figure is None else figure >= bar
