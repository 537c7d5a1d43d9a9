"""Tiles or strips as rectangles over the picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.report.page.curves import Curve
from tightfit.report.page.fields import Event, at, mapping, real, report_of, rows, text, whole
from tightfit.report.trace_file import Trace

MOST_TILES = 400
_MOST_IN_ALL = 20_000
_SIZE = re.compile(r"(\d+(?:x\d+)+)")
_OVERLAP = 0.25


@dataclass(frozen=True)
class Tile:
    """One piece of work.

    Attributes:
        number: from 1, in the order they were run.
        left, top, width, height: in pixels of the picture; None where it is no part of one.
        start, stop: seconds of the trace.
        peak: bytes meanwhile.
    """

    number: int
    left: float
    top: float
    width: float
    height: float
    start: float
    stop: float
    peak: int | None


@dataclass(frozen=True)
class Picture:
    """Tiles over a picture.

    Attributes:
        rung: how it was cut.
        width, height: of the picture, in pixels.
        tiles: in the order they were run; where the picture was gone over several times, those of
            the time that took most of them.
        total, done: how many there were to do, and were done.
        placed: where each is: as ``told`` by the trace, or worked out ``by size`` and number, or
            ``by number`` alone.
        layers: how many times the picture was gone over, for the pieces of a clip, the stages of
            a network that is run in strips, or the items of a batch.
    """

    rung: str
    width: int
    height: int
    tiles: tuple[Tile, ...]
    total: int
    done: int
    placed: str
    layers: int = 1


def picture(trace: Trace, memory: Curve | None) -> Picture | None:
    """The last cut of the trace; None where nothing was cut or the picture's size is not known."""
    events = [event for event in trace.events if event["event"] == "tile"]
    width, height = _extent(trace, events)
    if not events or width is None or height is None:
        return None
    rung = text(events[-1], "rung")
    ours = [event for event in events if text(event, "rung") == rung]
    ours = ours[-_of_one_go(ours) :]
    total = max(whole(ours[-1], "total") or 0, len(ours))
    if total > _MOST_IN_ALL:
        return None
    began = [
        at(event)
        for event in trace.events
        if event["event"] == "attempt" and at(event) <= at(ours[0])
    ]
    times = [began[-1] if began else at(ours[0]), *(at(event) for event in ours)]
    told = [box for event in ours if (box := _told(event)) is not None]
    if len(told) == len(ours):
        parts, layers = _finest(list(zip(told, times, times[1:], strict=False)))
        placed = "told"
    else:
        boxes, layers, placed = _boxes(rung, trace, (width, height), total)
        parts = list(zip(boxes, times, times[1:], strict=False))
    tiles = []
    for number, (box, start, stop) in enumerate(parts, 1):
        seen = memory.within(start, stop) if memory is not None else None
        tiles.append(Tile(number, *box, start, stop, None if seen is None else seen[1]))
    return Picture(rung, width, height, tuple(tiles[:MOST_TILES]), total, len(ours), placed, layers)


def _of_one_go(events: Sequence[Event]) -> int:
    """How many of the last events are of one go: `done` rises within it."""
    count = 1
    for later, earlier in zip(reversed(events), list(reversed(events))[1:], strict=False):
        if (whole(earlier, "done") or 0) >= (whole(later, "done") or 0):
            break
        count += 1
    return count


def _extent(trace: Trace, events: Sequence[Event]) -> tuple[int | None, int | None]:
    """As it is said; where pieces lie beyond that, or nothing is said, as far as they reach."""
    width, height = _said(trace)
    boxes = [box for event in events if (box := _told(event)) is not None]
    if not boxes:
        return width, height
    right = max(left + wide for left, _, wide, _ in boxes)
    bottom = max(top + tall for _, top, _, tall in boxes)
    return max(width or 0, round(right)), max(height or 0, round(bottom))


def _said(trace: Trace) -> tuple[int | None, int | None]:
    report = report_of(trace)
    for values in (
        *(event for event in reversed(trace.events) if event["event"] == "tile"),
        mapping(report, "input"),
        mapping(report, "output"),
    ):
        width = whole(values, "picture_width", "width")
        height = whole(values, "picture_height", "height")
        if width and height and width > 0 and height > 0:
            return width, height
    return None, None


Box = tuple[float, float, float, float]


Part = tuple[Box, float, float]
"""Where a piece is, and from when to when it was run."""


def _finest(parts: list[Part]) -> tuple[list[Part], int]:
    """The pieces of the time that the picture was gone over in most, and how often it was.

    Pieces of one place that follow each other, as those of a clip do, are one.
    """
    passes: list[list[Part]] = []
    most = alike = 1
    for part in parts:
        last = passes[-1][-1] if passes else None
        if last is not None and last[0] == part[0]:
            passes[-1][-1] = (last[0], last[1], part[2])
            alike += 1
            most = max(most, alike)
            continue
        alike = 1
        if last is None or part[0][:2] == parts[0][0][:2]:
            passes.append([])
        passes[-1].append(part)
    return max(reversed(passes), key=len), most * len(passes)


def _boxes(
    rung: str, trace: Trace, extent: tuple[int, int], total: int
) -> tuple[list[Box], int, str]:
    """Left, top, width, height of each; how many layers; how that is known."""
    width, height = extent
    size = _size(rung, trace)
    if size is None:
        each = height / total
        return [(0, each * number, width, each) for number in range(total)], 1, "by number"
    rows_, columns, layers = _grid(width, height, size, total)
    tall, wide = min(size[0], height), min(size[1], width)
    tops, lefts = _spread(height, tall, rows_), _spread(width, wide, columns)
    boxes = [(left, top, float(wide), float(tall)) for top in tops for left in lefts]
    return boxes * layers, layers, "by size"


def _told(event: Event) -> Box | None:
    box = event.get("box")
    if isinstance(box, Sequence) and len(box) == 4:
        sides = [real({"side": side}, "side") for side in box]
        if all(side is not None for side in sides):
            left, top, width, height = (float(side or 0) for side in sides)
            return left, top, width, height
    return None


def _size(rung: str, trace: Trace) -> tuple[int, int] | None:
    """Height and width of a tile, as the report or the rung's name has it."""
    for attempt in rows(report_of(trace), "attempts"):
        tile = attempt.get("tile")
        if text(attempt, "rung") == rung and isinstance(tile, list | tuple) and len(tile) >= 2:
            tall, wide = tile[-2:]
            if isinstance(tall, int) and isinstance(wide, int) and tall > 0 and wide > 0:
                return tall, wide
    named = _SIZE.search(rung)
    if named is None:
        return None
    tall, wide = (int(side) for side in named[1].split("x")[-2:])
    return (tall, wide) if tall and wide else None


def _grid(width: int, height: int, size: tuple[int, int], total: int) -> tuple[int, int, int]:
    """Rows, columns and layers that come to `total`, as near as may be to the usual overlap."""
    wish = tuple(
        max(1.0, (length - side * _OVERLAP) / (side * (1 - _OVERLAP))) if side < length else 1.0
        for length, side in zip((height, width), size, strict=True)
    )
    best: tuple[float, tuple[int, int, int]] | None = None
    for tall in range(max(1, -(-height // size[0])), total + 1):
        for wide in range(max(1, -(-width // size[1])), total // tall + 1):
            if total % (tall * wide):
                continue
            off = abs(tall - wish[0]) / wish[0] + abs(wide - wish[1]) / wish[1]
            if best is None or off < best[0]:
                best = off, (tall, wide, total // (tall * wide))
    return best[1] if best is not None else (1, total, 1)


def _spread(length: int, side: int, count: int) -> list[float]:
    """Where `count` equal sides begin, spread evenly over a length."""
    if count < 2:
        return [0.0]
    return [(length - side) * number / (count - 1) for number in range(count)]
