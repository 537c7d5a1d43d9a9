"""Two sequences of memory moves laid side by side: what was foreseen, and what was seen. No torch.

A real run makes most moves of its dry run, in nearly the same order. Between them it takes and
gives back scratch, it leaves out what a fused operator never makes, and it swaps neighbours. The
cheapest way from one sequence to the other (an edit distance) tells which is which: moves that are
in both cost nothing, and an allocation that is freed at once costs less than a move that is in one
alone, so scratch of the very size of a result is not taken for the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tightfit.units import MIB

_ALONE, _AT_ONCE, _NEARLY = 4, 2, 1
_BAND = 4096
"""How many moves of the foreseen are looked at for each one seen: beyond twice that many, those
about as far along."""
_UNSPLIT = MIB
"""A caching allocator gives a large block whole where less than this would be left."""
_FAR = 1 << 28
_BOTH, _FORESEEN, _SEEN, _SCRATCH = range(4)

Pair = tuple[int | None, int | None]
"""(index foreseen, index seen); None on one side for a move that is in the other alone."""


def align(foreseen: Sequence[int], seen: Sequence[int]) -> list[Pair]:
    """Every move of both, in order; those that are one and the same as pairs.

    Moves are signed sizes in bytes, above 0 for an allocation. Time and memory grow with the
    product of their numbers, up to 4096 of the one: half a second for 10,000 moves of each.
    """
    steps, starts = _forward(foreseen, seen)
    pairs: list[Pair] = []
    i, j = len(foreseen), len(seen)
    while i or j:
        step = steps[j, i - starts[j]]
        if step == _BOTH:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif step == _FORESEEN:
            i -= 1
            pairs.append((i, None))
        else:
            for _ in range(2 if step == _SCRATCH else 1):
                j -= 1
                pairs.append((None, j))
    return pairs[::-1]


def _forward(foreseen: Sequence[int], seen: Sequence[int]) -> tuple[Any, list[int]]:
    """For each number of moves seen and foreseen, the last step of the cheapest way there."""
    wanted = np.array([0, *foreseen], dtype=np.int64)
    width = min(len(wanted), _BAND)
    starts = [
        min(max(len(foreseen) * j // max(1, len(seen)) - width // 2, 0), len(wanted) - width)
        for j in range(len(seen) + 1)
    ]
    steps = np.full((len(seen) + 1, width), _FORESEEN, dtype=np.int8)
    ramp = np.arange(width, dtype=np.int32) * _ALONE
    rows = [ramp.copy()]
    for j, change in enumerate(seen, start=1):
        row = steps[j]
        same, before = _shifted(rows[-1], starts[j] - starts[j - 1])
        costs = same + _ALONE
        row[:] = _SEEN
        price = _price(wanted[starts[j] : starts[j] + width], change)
        _take(costs, row, before + price, _BOTH)
        if j > 1 and change < 0 and seen[j - 2] == -change:
            same, _ = _shifted(rows[-2], starts[j] - starts[j - 2])
            _take(costs, row, same + _AT_ONCE, _SCRATCH)
        _take(costs, row, np.minimum.accumulate(costs - ramp) + ramp, _FORESEEN)
        rows = [rows[-1], np.minimum(costs, _FAR)]
    return steps, starts


def _shifted(row: Any, by: int) -> tuple[Any, Any]:
    """A row of costs as the next one numbers it: at the same place, and at the place before."""
    padded = np.full(len(row) + by + 1, _FAR, dtype=np.int32)
    padded[1 : len(row) + 1] = row
    return padded[by + 1 :], padded[by : by + len(row)]


def _take(costs: Any, steps: Any, offered: Any, step: int) -> None:
    """Where `offered` is cheaper, take it."""
    better = offered < costs
    costs[better] = offered[better]
    steps[better] = step


def _price(wanted: Any, change: int) -> Any:
    """What it costs to take `change` for each of the moves `wanted`."""
    price = np.where(wanted == change, 0, _FAR).astype(np.int32)
    if abs(change) > _UNSPLIT:
        over = (change - wanted) * (1 if change > 0 else -1)
        alike = (np.sign(wanted) == np.sign(change)) & (np.abs(wanted) > _UNSPLIT)
        price[alike & (over > 0) & (over < _UNSPLIT)] = _NEARLY
    return price
