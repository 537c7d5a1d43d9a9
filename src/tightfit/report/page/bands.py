"""Stages and tries as stretches of time, with what each held and what it was refused."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tightfit.errors import UsageError
from tightfit.report.page.curves import Curve
from tightfit.report.page.fields import Event, at, text, whole
from tightfit.units import parse_bytes

_REFUSED = re.compile(r"[Tt]ried to allocate ([\d.]+\s*(?:[KMGT]i?B|bytes|B))")
_MOST = 150
_NEAR_THE_PEAK = 0.9
_ROUNDED = 1.02
_LITTLE = 2**20
_MOST_RETURNS = 8


@dataclass(frozen=True)
class Band:
    """A stretch of time with a name.

    Attributes:
        name: what was done then.
        start, stop: seconds.
        outcome: ``ok``, ``oom``, or ``open`` where the trace ends first.
        held: bytes when it began.
        floor, peak: the least and the most that was held in it.
        refused: bytes that were asked for and not granted, as the message rounds them.
        refused_at: about when that was: the last time that memory was near the try's peak.
        held_at_refusal: bytes then.
        why: the message.
        times: how many neighbours of the same name it stands for.
    """

    name: str
    start: float
    stop: float
    outcome: str = "ok"
    held: int | None = None
    floor: int | None = None
    peak: int | None = None
    refused: int | None = None
    refused_at: float | None = None
    held_at_refusal: int | None = None
    why: str = ""
    times: int = 1

    @property
    def failed(self) -> bool:
        """Whether it ran out of memory."""
        return self.outcome == "oom"


def stages(events: Sequence[Event], stop: float) -> list[Band]:
    """The stages of the job, each until the next."""
    marks = [(at(event), text(event, "stage")) for event in events if event["event"] == "stage"]
    ends = [time for time, _ in marks[1:]] + [max(stop, marks[-1][0])] if marks else []
    bands = [Band(name or "?", start, end) for (start, name), end in zip(marks, ends, strict=True)]
    return _fewer(bands)


def tries(events: Sequence[Event], memory: Curve | None, stop: float) -> list[Band]:
    """The attempts in the order they began, loading included."""
    found: list[Band] = []
    now: Band | None = None
    for event in events:
        kind = event["event"]
        if kind == "attempt":
            if now is not None:
                found.append(_measured(replace(now, stop=at(event), outcome="open"), memory))
            now = Band(_name(event), at(event), at(event), held=whole(event, "held_bytes"))
        elif kind in ("done", "oom") and now is not None:
            band = replace(now, stop=at(event), outcome="ok" if kind == "done" else "oom")
            if kind == "oom":
                band = replace(band, why=text(event, "text"), refused=refused_bytes(event))
            found.append(_measured(band, memory))
            now = None
    if now is not None:
        found.append(_measured(replace(now, stop=max(stop, now.start), outcome="open"), memory))
    return _fewer(found)


@dataclass(frozen=True)
class Kept:
    """What of a failed try was still held while a later one ran.

    Attributes:
        start, stop: of the later try, in seconds.
        base: bytes that were held before the failed one.
        bytes: that were held beyond, all through it.
    """

    start: float
    stop: float
    base: int
    bytes: int


def kept(bands: Sequence[Band]) -> list[Kept]:
    """For each try after a failed one during which more was held than before that."""
    found: list[Kept] = []
    base: int | None = None
    for band in bands:
        if base is not None and band.held is not None:
            all_through = min(band.held, band.held if band.floor is None else band.floor)
            if is_more(all_through, base):
                found.append(Kept(band.start, band.stop, base, all_through - base))
        if band.failed and base is None:
            base = band.held
        elif not band.failed:
            base = None
    return found


def returns(events: Sequence[Event], *, most: int = _MOST_RETURNS) -> list[tuple[float, int]]:
    """When a failed try had let go of all that it held, and what was left then, in bytes."""
    found = []
    for event in events:
        held, base = whole(event, "held_bytes"), whole(event, "baseline_bytes")
        if event["event"] != "recovered" or held is None or base is None:
            continue
        if not is_more(held, base):
            found.append((at(event), held))
    return found[:most]


def is_more(held: int, base: int) -> bool:
    """Whether somebody holds more, apart from what an allocator rounds and a library keeps."""
    return held > base * _ROUNDED + _LITTLE


def refused_bytes(event: Event) -> int | None:
    """What was asked for and not granted; None where the message does not say."""
    known = whole(event, "requested_bytes", "refused_bytes")
    said = _REFUSED.search(text(event, "text", "reason"))
    if known is not None or said is None:
        return known
    try:
        return parse_bytes(said[1].replace("bytes", "B"))
    except UsageError:
        return None


def calls(tiles: Sequence[float], band: Band) -> list[tuple[float, float]]:
    """The stretches of a try between its tiles; the whole of one that has none.

    Args:
        tiles: when each tile was done, in order.
        band: the try.
    """
    first, end = bisect_right(tiles, band.start), bisect_left(tiles, band.stop)
    edges = [band.start, *tiles[first:end], band.stop]
    return list(pairwise(edges))


def _name(event: Event) -> str:
    stage, rung = text(event, "stage"), text(event, "rung")
    return f"{stage}: {rung}" if stage and rung else stage or rung or "?"


def _measured(band: Band, memory: Curve | None) -> Band:
    seen = memory.within(band.start, band.stop) if memory is not None else None
    if memory is None or seen is None:
        return band
    band = replace(band, floor=seen[0], peak=seen[1])
    if not band.failed:
        return band
    near = [
        (time, high)
        for time, high in zip(memory.times, memory.high, strict=True)
        if band.start <= time <= band.stop and high >= seen[1] * _NEAR_THE_PEAK
    ]
    if not near:
        return band
    return replace(band, refused_at=near[-1][0], held_at_refusal=near[-1][1])


def _fewer(bands: list[Band]) -> list[Band]:
    """Neighbours of one name that went well become one band where there are many."""
    if len(bands) <= _MOST:
        return bands
    merged: list[Band] = []
    for band in bands:
        last = merged[-1] if merged else None
        if last is None or last.name != band.name or (last.outcome, band.outcome) != ("ok", "ok"):
            merged.append(band)
            continue
        floors = [each for each in (last.floor, band.floor) if each is not None]
        peaks = [each for each in (last.peak, band.peak) if each is not None]
        merged[-1] = replace(
            last,
            stop=band.stop,
            floor=min(floors, default=None),
            peak=max(peaks, default=None),
            times=last.times + 1,
        )
    return merged
