"""Memory over time with levels of detail: the least and the most of each stretch, so that no peak
is ever lost."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.report.page.fields import Event, at, whole

MOST_POINTS = 20_000
"""Points of a curve that the page carries: about 0.5 MB."""


@dataclass(frozen=True)
class Curve:
    """A figure that holds from each of its times to the next.

    Attributes:
        times: seconds, rising; point i covers [times[i], times[i + 1]).
        low, high: the least and the most of each point, in bytes; the same where it is one sample.
    """

    times: tuple[float, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def peak(self) -> int:
        """The most of all."""
        return max(self.high)

    @property
    def peak_time(self) -> float:
        """When it began to be the most."""
        return self.times[self.high.index(self.peak)]

    def between(self, start: float, stop: float) -> tuple[int, int] | None:
        """The least and the most over [start, stop], what held before `start` included unless there
        is a sample right then.

        None before the first sample.
        """
        first = bisect_left(self.times, start)
        if first == len(self.times) or self.times[first] > start:
            first = max(0, first - 1)
        end = bisect_right(self.times, stop)
        if end <= first:
            return None
        return min(self.low[first:end]), max(self.high[first:end])

    def within(self, start: float, stop: float) -> tuple[int, int] | None:
        """The least and the most of the samples in [start, stop]; of what held if there is none."""
        first, end = bisect_left(self.times, start), bisect_right(self.times, stop)
        if end <= first:
            return self.between(start, stop)
        return min(self.low[first:end]), max(self.high[first:end])

    def columns(self, start: float, stop: float, count: int) -> list[tuple[int, int] | None]:
        """The least and the most of `count` equal stretches of [start, stop]."""
        step = (stop - start) / count
        return [
            self.between(start + step * column, start + step * (column + 1))
            for column in range(count)
        ]

    def as_dict(self) -> dict[str, object]:
        """For the page's script: times as differences in microseconds, `high` only if it differs
        from `low`."""
        micros = [round(time * 1e6) for time in self.times]
        steps = [one - other for one, other in zip(micros, [0, *micros], strict=False)]
        same = self.low == self.high
        return {
            "t": steps,
            "lo": list(self.low),
            "hi": None if same else list(self.high),
        }


def curve(samples: Sequence[tuple[float, int]], *, most: int = MOST_POINTS) -> Curve | None:
    """The curve of samples (seconds, bytes) in at most `most` points; None of no samples.

    Where there are more samples, as many neighbours each become one point: detail stays where
    much happened.
    """
    if not samples:
        return None
    samples = sorted(samples, key=lambda sample: sample[0])
    group = -(-len(samples) // most)
    parts = [samples[first : first + group] for first in range(0, len(samples), group)]
    values = [[value for _, value in part] for part in parts]
    return Curve(
        tuple(part[0][0] for part in parts),
        tuple(map(min, values)),
        tuple(map(max, values)),
    )


def samples_of(
    events: Sequence[Event], kinds: Sequence[str], figure: str
) -> list[tuple[float, int]]:
    """What events of these kinds say of a figure, where they say it."""
    found = []
    for event in events:
        value = whole(event, figure) if event["event"] in kinds else None
        if value is not None:
            found.append((at(event), value))
    return found


def outline(columns: Sequence[tuple[int, int] | None], top: int, *, low: bool = False) -> str:
    """An SVG path along the upper (or lower) edge, on a canvas of 1000 by 1000, 0 at the bottom.

    Empty where there is nothing to draw.
    """
    drawn, pen, before = [], False, -1.0
    step = 1000 / max(1, len(columns))
    for number, column in enumerate(columns):
        if column is None:
            pen = False
            continue
        y = 1000 - 1000 * column[0 if low else 1] / top
        if not pen:
            drawn.append(f"M{number * step:.1f} {y:.1f}")
        elif y != before:
            drawn.append(f"H{number * step:.1f}V{y:.1f}")
        pen, before = True, y
    if drawn and pen:
        drawn.append("H1000")
    return "".join(drawn)


def area(line: str) -> str:
    """The same path, closed along the bottom; of one piece, as a curve that began goes on."""
    if not line:
        return ""
    begin = line[1:].split(" ", 1)[0]
    return f"{line}V1000H{begin}Z"
