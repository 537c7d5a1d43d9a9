"""Which pieces are streamed, so that copying is spread evenly over a step."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.plan.streaming.pieces import Piece

_WALKS = 8
_SMALL = 8
"""Pieces less than one part in so many of the largest stay, where there is room for them all: a
copy costs the host as much time whatever its size."""
_ALL_BUT = 1 - 1e-9
"""Half of a piece is owed also where a sum of shares falls short of it by rounding."""


def spread(
    pieces: Sequence[Piece],
    stays: Sequence[bool],
    room: int,
    *,
    at_least: int = 0,
    ahead: int | None = None,
) -> list[bool]:
    """For each piece whether it is resident; resident bytes are at most `room`.

    Streamed pieces are spread by error diffusion: what is to be copied grows evenly with compute
    time, and a piece is streamed when half of it is owed. A contiguous tail would wait for the
    link while the other blocks compute.

    Args:
        pieces: in the order they run in.
        stays: those that must be resident; they fit `room`.
        room: bytes for resident pieces.
        at_least: stream so many bytes, even where there is room for more.
        ahead: bytes that can be copied before they are needed, those of the ring; None is no bound.
            Where compute passes with nothing to stream, no more than that can be made good later.
    """
    stays = _with_small(pieces, stays, room, at_least)
    total = sum(piece.bytes for piece in pieces)
    free = sum(p.bytes for p, stay in zip(pieces, stays, strict=True) if not stay)
    need = min(free, max(total - room, at_least))
    goal, streamed, got = need, set[int](), 0
    for _ in range(_WALKS):
        if got >= need:
            break
        streamed = _walk(pieces, stays, goal, ahead)
        got = sum(pieces[at].bytes for at in streamed)
        goal += max(0, need - got)
    while got < need:
        at = _next_to_go(pieces, stays, streamed, need - got)
        streamed.add(at)
        got += pieces[at].bytes
    for at in sorted(streamed, key=lambda at: (-pieces[at].bytes, at)):
        if pieces[at].bytes <= got - need:
            streamed.discard(at)
            got -= pieces[at].bytes
    return [at not in streamed for at in range(len(pieces))]


def _with_small(
    pieces: Sequence[Piece], stays: Sequence[bool], room: int, at_least: int
) -> Sequence[bool]:
    """`stays`, with all small pieces as well, if what is to be streamed can be without them."""
    least = max((piece.bytes for piece in pieces), default=0) // _SMALL
    more = [stay or piece.bytes < least for piece, stay in zip(pieces, stays, strict=True)]
    total = sum(piece.bytes for piece in pieces)
    kept = sum(piece.bytes for piece, stay in zip(pieces, more, strict=True) if stay)
    return more if total - kept >= max(total - room, at_least) else stays


def _walk(pieces: Sequence[Piece], stays: Sequence[bool], goal: int, ahead: int | None) -> set[int]:
    streamed = set()
    owed = 0.0
    for at, piece in enumerate(pieces):
        owed += goal * piece.time
        if ahead is not None:
            owed = min(owed, max(ahead, piece.bytes))
        if not stays[at] and piece.bytes and 2 * owed >= piece.bytes * _ALL_BUT:
            streamed.add(at)
            owed -= piece.bytes
    return streamed


def _next_to_go(
    pieces: Sequence[Piece], stays: Sequence[bool], streamed: set[int], lacking: int
) -> int:
    """The smallest piece that is enough, else the largest; the first of equals."""
    left = [at for at in range(len(pieces)) if not stays[at] and at not in streamed]
    enough = [at for at in left if pieces[at].bytes >= lacking]
    if enough:
        return min(enough, key=lambda at: (pieces[at].bytes, at))
    return min(left, key=lambda at: (-pieces[at].bytes, at))
