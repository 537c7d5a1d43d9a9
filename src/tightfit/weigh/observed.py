"""Learning the scratch of operators from one small real run that was watched move by move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tightfit.allocators import ALIGNMENT, round_up
from tightfit.weigh.alignment import Pair, align
from tightfit.weigh.workspace import Placed, Ran, handled, signature

_FAINT = 4096
"""Moves smaller than this part of the dry run's peak decide nothing, and are many."""
_LARGE = 0.9
"""Only calls that handle this part of what the largest call of their signature does tell its share:
smaller ones may have another stride or get another kernel, and no peak depends on them."""


@dataclass(frozen=True)
class Learnt:
    """What watching one run taught.

    Attributes:
        shares: scratch per byte of `workspace.handled`, by `workspace.signature`.
        matched: the part of the dry run's allocations, by bytes, that the real run made too.
        kept: bytes that the real run left behind, such as a library's own workspace.
    """

    shares: dict[str, float]
    matched: float
    kept: int = 0


def learn(run: Ran, changes: Iterable[int]) -> Learnt:
    """Compare a dry run with the real one at the same size.

    `changes` are the bytes by which allocated moved, one by one: above 0 for an allocation. From
    one move that both made to the next, the scratch of the operator that was running is what the
    real run held at most over what the dry run did. What is never given back is no scratch.
    """
    sizes = {key: _block(size) for key, size in run.steps if size}
    moves = [_block(size) if size else -sizes[key] for key, size in run.steps]
    faint = max(ALIGNMENT, max(accumulate(moves), default=0) // _FAINT)
    places = [place for place, move in enumerate(moves) if abs(move) >= faint]
    foreseen = [moves[place] for place in places]
    seen = [change for change in map(_block, changes) if abs(change) >= faint]
    pairs = align(foreseen, seen)
    kept = _kept(seen, pairs)
    whose = _Operators(run.calls, moves, places)
    scratch = _scratch(foreseen, seen, pairs, kept, whose)
    made = sum(size for size in foreseen if size > 0)
    found = sum(max(0, foreseen[i]) for i, j in pairs if i is not None and j is not None)
    return Learnt(
        _shares(run.calls, scratch), found / made if made else 0.0, sum(seen[j] for j in kept)
    )


def _block(change: int) -> int:
    """What an allocator books for it: histories tell what was asked, or what was given."""
    return round_up(change, ALIGNMENT) if change > 0 else -round_up(-change, ALIGNMENT)


def _kept(seen: Sequence[int], pairs: Iterable[Pair]) -> set[int]:
    """Which of the allocations seen were never given back: what is left at the end, and no more."""
    waiting: dict[int, list[int]] = defaultdict(list)
    for i, j in pairs:
        if i is not None or j is None:
            continue
        if seen[j] > 0:
            waiting[seen[j]].append(j)
        elif waiting[-seen[j]]:
            waiting[-seen[j]].pop()
    left = sum(seen)
    kept = set()
    for size in sorted(waiting, reverse=True):
        for j in waiting[size]:
            if size <= left:
                left -= size
                kept.add(j)
    return kept


class _Operators:
    """Which operator is under way, by the number of visible moves of the dry run that are done."""

    def __init__(
        self, calls: Sequence[Placed], moves: Sequence[int], places: Sequence[int]
    ) -> None:
        self._running = [0]
        call = 0
        for place in places:
            done = place + 1
            while call + 1 < len(calls) and calls[call + 1].after <= done:
                call += 1
            made = moves[place] > 0 and calls[call].after == done
            later = call if made or calls[call].after > done else min(call + 1, len(calls) - 1)
            self._running.append(later)

    def at(self, done: int) -> int:
        """The last that made something, until one of its inputs goes; from then on the next."""
        return self._running[done]


def _scratch(
    foreseen: Sequence[int],
    seen: Sequence[int],
    pairs: Iterable[Pair],
    kept: set[int],
    whose: _Operators,
) -> dict[int, int]:
    """Bytes by index of the call, over the stretches between moves that both made."""
    scratch: dict[int, int] = defaultdict(int)
    real = dry = dry_most = done = 0
    real_most: int | None = None  # over the allocations: nothing peaks at a free

    def note() -> None:
        if real_most is not None:
            call = whose.at(done)
            scratch[call] = max(scratch[call], real_most - dry_most)

    for i, j in pairs:
        both = i is not None and j is not None
        grows = j is not None and seen[j] > 0
        if both and not (grows and real > dry and real_most == real):
            note()  # else it is the scratch of the operator whose result comes now
        if i is not None:
            dry += foreseen[i]
        if j is not None and j not in kept:
            real += seen[j]
        if both:
            done = (i or 0) + 1
            real_most, dry_most = (real if grows else None), dry
        else:
            dry_most = max(dry_most, dry)
            if grows:
                real_most = max(real_most or 0, real)
    note()
    return scratch


def _shares(calls: Sequence[Placed], scratch: dict[int, int]) -> dict[str, float]:
    """By signature; of its large calls, the one that needs most stands for all of them."""
    largest: dict[str, int] = {}
    for call in calls:
        key = signature(call)
        largest[key] = max(largest.get(key, 0), call.reads + call.writes)
    shares: dict[str, float] = {}
    for number, call in enumerate(calls):
        key, both = signature(call), call.reads + call.writes
        if key and both and both >= _LARGE * largest[key]:
            shares[key] = max(shares.get(key, 0.0), scratch.get(number, 0) / handled(call))
    return shares
