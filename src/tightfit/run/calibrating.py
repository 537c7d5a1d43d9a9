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


@dataclass(frozen=True)
class Watched:
    """A real run, in bytes beyond what was held at its start.

    Attributes:
        measured: the peak of allocated.
        reserved: the peak of reserved, from an allocator that was trimmed before.
        refusals: requests that were turned down in silence; None where they are not counted.
        learnt: the scratch of its operators; None where the allocator keeps no history.
    """

    measured: int | None
    reserved: int | None
    refusals: int | None
    learnt: Learnt | None


def watch(card: Card, dry: DryRun, call: Callable[[], object]) -> Watched:
    """Run `call` on `card` once; `dry` is the same call on the meta device.

    An out-of-memory passes through: choose a small size. The result is dropped.
    """
    with card.alone():
        card.trim()
        card.reset_peaks()
        before = card.read()
        with card.moves() as moves:
            call()
            card.sync()
        after = card.read()
    measured = reserved = None
    if after.peak_allocated is not None and before.allocated is not None:
        measured = after.peak_allocated - before.allocated
    if after.peak_reserved is not None and before.reserved is not None:
        reserved = after.peak_reserved - before.reserved
    learnt = learn(dry, moves) if moves is not None else None
    return Watched(measured, reserved, after.refused_since(before), learnt)


def calibrated(
    known: Calibration, dry: DryRun, watched: Watched, *, samples: int, table: Workspaces
) -> Calibration:
    """What is known after a run was watched; a run that was short of workspace teaches nothing.

    `table` is what was taken for the scratch so far. `samples` tells one size from another.
    """
    if watched.refusals or not watched.measured:
        return known
    if watched.learnt is not None and watched.learnt.matched >= ENOUGH and not known.seen:
        known = known.with_shares(watched.learnt.shares)
    spaces = replace(table, learnt=known.shares)
    predicted = peak_of(sequence(dry, spaces))
    return known.with_run(Seen(samples, predicted, watched.measured))
