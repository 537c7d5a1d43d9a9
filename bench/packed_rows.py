"""Rows of packed streaming: how they are called beside raw streaming, and what counts as met."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from stream_jobs import OURS, PACKED, Job
from stream_rows import RAW, StreamRow, Verdict, set_up

_NAMES = {PACKED: OURS, OURS: RAW}


def renamed(rows: Iterable[StreamRow], jobs: Sequence[Job]) -> list[StreamRow]:
    """Those of jobs that packed streaming has; it is ours then, and what was ours is raw."""
    names = {job.name for job in jobs if job.packed}
    return [replace(row, who=_NAMES.get(row.who, row.who)) for row in rows if row.job in names]


def unpacking_limit(row: StreamRow) -> float | None:
    """``max(C + unpack, B/W)``, B as it is stored; None where one of them is not known."""
    known = (row.resident_seconds, row.unpack_seconds, row.copied_bytes)
    if None in known or not (row.link_rate or row.copied_bytes == 0):
        return None
    compute, unpack, copied = (figure or 0.0 for figure in known)
    return max(compute + unpack, copied / row.link_rate if row.link_rate else 0.0)


def verdicts(job: Job, rows: Iterable[StreamRow]) -> Iterator[Verdict]:
    """What packed streaming is to reach, by rows that are `renamed`; None was not measured."""
    mine = {row.who: row for row in rows if row.job == job.name}
    ours, raw = mine.get(OURS), mine.get(RAW)
    if ours is None or job.packed is None:
        yield "measured", None
        return
    yield _pace(job, ours, raw)
    bits = [row.bit_equal for row in (ours, raw) if row is not None]
    yield "bit-equal", None if None in bits else all(bits)
    share = ours.share
    yield f"{_text(share, '.1%')} of the room (<= 100%)", None if share is None else share <= 1
    yield set_up(ours)


def _pace(job: Job, ours: StreamRow, raw: StreamRow | None) -> Verdict:
    bar = job.packed
    assert bar is not None
    if bar.over == "raw":
        faster = _times(None if raw is None else raw.seconds, ours.seconds)
        words = f"{_text(faster, '.2f')} x faster than raw (>= {bar.times})"
        return words, None if faster is None else faster >= bar.times
    bound, name = ours.resident_seconds, "resident"
    if bar.over == "limit":
        bound, name = unpacking_limit(ours), "limit with unpacking"
    ratio = _times(ours.seconds, bound)
    words = f"{_text(ratio, '.3f')} x {name} (<= {bar.times})"
    return words, None if ratio is None else ratio <= bar.times


def _times(one: float | None, two: float | None) -> float | None:
    return one / two if one is not None and two else None


def _text(figure: float | None, form: str) -> str:
    return "" if figure is None else format(figure, form)
