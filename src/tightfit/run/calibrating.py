"""One small real run that is watched, so that every other size can be predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tightfit.card import Card
from tightfit.weigh.calibration import Calibration, Seen
from tightfit.weigh.dry import DryRun
from tightfit.weigh.observed import Learnt, learn
from tightfit.weigh.workspace import Workspaces, peak_of, sequence

ENOUGH = 0.9
"""The part of a dry run that must be found in the real one for its scratch to be believed."""
UNEXPLAINED = 1.15
"""By how much a run whose scratch was learnt may differ from its prediction to tell a factor."""


@dataclass(frozen=True)
class Watched:
    """A real run, in bytes beyond what was held at its start.

    Attributes:
        measured: the peak of allocated.
        reserved: the peak of reserved, from an allocator that was trimmed before.
        refusals: requests that were turned down in silence; None where they are not counted.
        learnt: the scratch of its operators; None where the allocator keeps no history.
        kept: what it left behind; above 0 where each run leaves more.
        moves: the changes of allocated, one by one; None where there is no history.
    """

    measured: int | None
    reserved: int | None
    refusals: int | None
    learnt: Learnt | None
    kept: int = 0
    moves: tuple[int, ...] | None = None


def watch(card: Card, dry: DryRun, call: Callable[[], object]) -> Watched:
    """Run `call` on `card`; `dry` is the same call on the meta device.

    The first run in a process may leave something behind that no other one makes: a workspace of a
    library, a table that moves to the card. Then `call` is run once more, and the second counts.
    An out-of-memory passes through: choose a small size. The result is dropped.
    """
    with card.alone():
        first = _watched(card, dry, call)
        return _watched(card, dry, call) if first.kept else first


def _watched(card: Card, dry: DryRun, call: Callable[[], object]) -> Watched:
    card.trim()
    card.reset_peaks()
    before = card.read()
    with card.moves() as moves:
        call()
        card.sync()
    after = card.read()
    return Watched(
        _over(before.allocated, after.peak_allocated),
        _over(before.reserved, after.peak_reserved),
        after.refused_since(before),
        learn(dry, moves) if moves is not None else None,
        max(0, _over(before.allocated, after.allocated) or 0),
        tuple(moves) if moves is not None else None,
    )


def _over(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def calibrated(
    known: Calibration, dry: DryRun, watched: Watched, *, samples: int, table: Workspaces
) -> Calibration:
    """What is known after a run was watched; a run that was short of workspace teaches nothing.

    `table` is what was taken for the scratch so far. `samples` tells one size from another. Where
    the scratch was learnt, what is left unexplained is small or does not grow with the size, as in
    a run so small that reordered weights are most of its scratch: no factor is made of the latter.
    """
    if watched.refusals or not watched.measured:
        return known
    learnt = watched.learnt
    learns = learnt is not None and learnt.matched >= ENOUGH and not known.seen
    if learnt is not None and learns:
        known = known.with_shares(learnt.shares)
    predicted = peak_of(sequence(dry, replace(table, learnt=known.shares)))
    if learns and not 1 / UNEXPLAINED <= watched.measured / max(1, predicted) <= UNEXPLAINED:
        return known
    return known.with_run(Seen(samples, predicted, watched.measured))
