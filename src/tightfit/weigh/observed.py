"""Learning the scratch of operators from one small real run that was watched move by move."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tightfit.allocators import ALIGNMENT, round_up
from tightfit.weigh.workspace import Placed, Ran, signature

_AHEAD = 12
"""Moves of the dry run that the real one may make in another order."""


@dataclass(frozen=True)
class Learnt:
    """What watching one run taught.

    Attributes:
        shares: scratch per byte that an operator reads and writes, by `workspace.signature`.
        matched: the part of the dry run's allocations that the real run made too, 0 to 1.
    """

    shares: dict[str, float]
    matched: float


def learn(run: Ran, changes: Iterable[int]) -> Learnt:
    """Compare a dry run with the real one at the same size.

    `changes` are the bytes by which allocated moved, one by one: above 0 for an allocation. What
    the real run took and the dry run did not is the scratch of the operator that was running;
    the most it held at once counts.
    """
    sizes = {key: _block(size) for key, size in run.steps if size}
    moves = [_block(size) if size else -sizes[key] for key, size in run.steps]
    taken = [False] * len(moves)
    scratch = [0] * len(run.calls)
    ends = [call.after for call in run.calls]
    at = matched = open_scratch = call = 0
    for change in map(_block, changes):
        found = _find(moves, taken, at, change)
        if found is not None:
            taken[found] = True
            matched += change > 0
            while at < len(moves) and taken[at]:
                at += 1
            while call + 1 < len(ends) and ends[call] <= at and ends[call + 1] <= at:
                call += 1
            continue
        if change > 0:
            open_scratch += change
            running = _running(ends, call, at)
            scratch[running] = max(scratch[running], open_scratch)
        else:
            open_scratch = max(0, open_scratch + change)
    wanted = sum(move > 0 for move in moves)
    return Learnt(_shares(run.calls, scratch), matched / wanted if wanted else 0.0)


def _block(change: int) -> int:
    """What an allocator books for it: histories tell what was asked, or what was given."""
    return round_up(change, ALIGNMENT) if change > 0 else -round_up(-change, ALIGNMENT)


def _find(moves: Sequence[int], taken: Sequence[bool], at: int, change: int) -> int | None:
    """The next move of the dry run that is `change`, within reach."""
    for index in range(at, min(at + _AHEAD, len(moves))):
        if not taken[index] and moves[index] == change:
            return index
    return None


def _running(ends: Sequence[int], call: int, at: int) -> int:
    """The operator that is under way once `at` moves are done: its own result comes first."""
    if call + 1 < len(ends) and ends[call] < at:
        return call + 1
    return call


def _shares(calls: Sequence[Placed], scratch: Sequence[int]) -> dict[str, float]:
    """By signature; the operator of a signature that needs most stands for all of them."""
    shares: dict[str, float] = {}
    for call, size in zip(calls, scratch, strict=True):
        both = call.reads + call.writes
        if both:
            key = signature(call)
            shares[key] = max(shares.get(key, 0.0), size / both)
    return shares
