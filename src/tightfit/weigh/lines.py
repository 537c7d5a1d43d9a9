"""Bytes as a line over the size of a job: fixed + slope × size, never below what was seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Line:
    """``batch × (fixed + area × pixels + samples × pixels × frames)`` bytes; no part is negative.

    Attributes:
        fixed: bytes that do not grow with the picture: what text needs, mostly, so that every item
            of a batch has its own.
        area: bytes per pixel of one frame: what a video VAE holds while it walks through time.
        samples: bytes per pixel of all frames.
        frames: the fewest frames that the line is for.
    """

    fixed: float
    area: float
    samples: float
    frames: int = 1

    def at(self, *, area: int, frames: int = 1, batch: int = 1) -> int:
        """Bytes for pictures of `area` pixels, rounded up."""
        return -int(-batch * (self.fixed + area * (self.area + self.samples * frames)) // 1)


@dataclass(frozen=True)
class Point:
    """What was seen at one size, in bytes."""

    area: int
    frames: int
    bytes: int


def at_most(lines: Sequence[Line], *, area: int, frames: int = 1, batch: int = 1) -> int:
    """The highest of the lines that are for so many frames: never falls as the size grows."""
    return max(
        (line.at(area=area, frames=frames, batch=batch) for line in lines if line.frames <= frames),
        default=0,
    )


def fit(points: Sequence[Point], *, frames: int = 1) -> Line:
    """The line nearest to `points` in relative terms, lifted until it is below none of them.

    Raises `ValueError` for no points.
    """
    if not points:
        raise ValueError("a line needs points")
    rows = [(1.0, float(p.area), float(p.area * p.frames)) for p in points]
    values = [float(p.bytes) for p in points]
    found = nearest(rows, values)
    lift = max(value / max(1.0, _at(row, found)) for row, value in zip(rows, values, strict=True))
    fixed, area, samples = (max(1.0, lift) * term for term in found)
    short = max(
        value - _at(row, (fixed, area, samples)) for row, value in zip(rows, values, strict=True)
    )
    return Line(fixed + max(0.0, short), area, samples, frames)


def drawn(points: Sequence[Point]) -> tuple[Line, ...]:
    """One line for pictures, and a second one where clips need more than it says."""
    still = [point for point in points if point.frames == 1]
    moving = [point for point in points if point.frames > 1]
    lines = (fit(still),) if still else ()
    return (*lines, fit(moving, frames=2)) if moving else lines


def nearest(rows: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[float, ...]:
    """Coefficients of the columns of `rows`, none negative, nearest to `values` in relative terms.

    Least squares over each set of columns; the best of those without a negative coefficient.
    """
    width = len(rows[0])
    best: tuple[float, tuple[float, ...]] | None = None
    for count in range(1, width + 1):
        for terms in combinations(range(width), count):
            found = _least_squares(rows, values, terms)
            if found is None or min(found) < 0:
                continue
            error = sum(
                (_at(row, found) / value - 1) ** 2
                for row, value in zip(rows, values, strict=True)
                if value
            )
            if best is None or error < best[0] * 0.999:
                best = (error, found)
    return best[1] if best is not None else (max(values), *(0.0,) * (width - 1))


def _at(row: Sequence[float], found: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(row, found, strict=True))


def _least_squares(
    rows: Sequence[Sequence[float]], values: Sequence[float], terms: tuple[int, ...]
) -> tuple[float, ...] | None:
    """Coefficients of the chosen terms by the normal equations, relative to the values."""
    relative = [
        [row[term] / max(value, 1.0) for term in terms]
        for row, value in zip(rows, values, strict=True)
    ]
    scale = [max(row[at] for row in relative) for at in range(len(terms))]
    weighted = [[x / size for x, size in zip(row, scale, strict=True)] for row in relative]
    count = len(terms)
    matrix = [
        [sum(row[i] * row[j] for row in weighted) for j in range(count)]
        + [sum(row[i] * (value > 0) for row, value in zip(weighted, values, strict=True))]
        for i in range(count)
    ]
    for i in range(count):
        pivot = max(range(i, count), key=lambda r: abs(matrix[r][i]))
        if abs(matrix[pivot][i]) < 1e-11:
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for other in range(count):
            if other != i:
                factor = matrix[other][i] / matrix[i][i]
                matrix[other] = [
                    a - factor * b for a, b in zip(matrix[other], matrix[i], strict=True)
                ]
    found = [0.0] * len(rows[0])
    for at, term in enumerate(terms):
        found[term] = matrix[at][count] / matrix[at][at] / scale[at]
    return tuple(found)
