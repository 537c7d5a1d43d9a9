"""One step played through: when each weight is copied, and when it is computed with."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.plan.streaming.pieces import Piece

_STEPS = 3


def step_seconds(
    pieces: Sequence[Piece],
    stays: Sequence[bool],
    *,
    slots: int,
    compute: float,
    link: float,
) -> float:
    """Seconds of one step in the steady state, waits included.

    Streamed pieces pass through `slots` slots in turn. A copy begins when the one before it is
    done and its slot is free; a piece is computed with when it is there and the piece before it
    is done. Copying goes on from one step into the next. Never below ``max(C, B/W)``; what is
    above it is waiting, from streamed pieces that lie too close together or slots that are few.

    Args:
        pieces: in the order they run in.
        stays: which of them are resident.
        slots: 2 or more.
        compute: seconds of one step with everything resident.
        link: bytes a second.
    """
    works = [
        (piece.time * compute, None if stay else piece.moved / link)
        for piece, stay in zip(pieces, stays, strict=True)
    ]
    free = [0.0] * slots
    copied = done = before = 0.0
    at = 0
    for _ in range(_STEPS):
        before = done
        for computing, copying in works:
            if copying is None:
                done += computing
                continue
            copied = max(copied, free[at]) + copying
            done = max(done, copied) + computing
            free[at] = done
            at = (at + 1) % slots
    return done - before
