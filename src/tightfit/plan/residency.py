"""Which weights stay on the card, and which are copied for each use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tightfit.plan.pieces import Piece
from tightfit.plan.ring import NO_RING, Option, Ring

Mode = Literal["auto", "high", "low", "none"]
"""All resident where it fits, else planned · all resident or refused · only as much resident as
saves time · everything streamed."""
MODES: tuple[Mode, ...] = ("auto", "high", "low", "none")
_QUARTER = 4
_AS_GOOD = 1.02
"""Copying in larger pieces is worth this much of a step: fewer copies, events and stalls."""
_COARSE = {"none": 0, "block": 1, "leaf": 2, "rows": 3}
_WALKS = 8


@dataclass(frozen=True)
class Limits:
    """What bounds one call: compute against link.

    Attributes:
        compute: seconds with everything resident; None is unknown.
        link: bytes a second; None is unknown.
    """

    compute: float | None = None
    link: float | None = None

    @property
    def hidden(self) -> float | None:
        """Bytes that can be copied behind the computation."""
        if self.compute is None or self.link is None:
            return None
        return self.compute * self.link

    def seconds(self, moved: float, *, overlaps: bool) -> float | None:
        """Of one call that copies `moved` bytes: ``max(C, B/W)``, or ``C + B/W`` one by one."""
        if self.compute is None or self.link is None:
            return None
        copying = moved / self.link
        return max(self.compute, copying) if overlaps else self.compute + copying


@dataclass(frozen=True)
class Residency:
    """Where the weights of one stage live.

    Attributes:
        pieces: all weights, in the order they run in.
        stays: for each piece, whether it is resident; the others are streamed.
        ring: what streamed pieces pass through.
        conversion: bytes of the scratch.
    """

    pieces: tuple[Piece, ...]
    stays: tuple[bool, ...]
    ring: Ring
    conversion: int

    @cached_property
    def resident(self) -> tuple[Piece, ...]:
        """Pieces that stay on the card."""
        return tuple(p for p, stay in zip(self.pieces, self.stays, strict=True) if stay)

    @cached_property
    def streamed(self) -> tuple[Piece, ...]:
        """Pieces that are copied for each use."""
        return tuple(p for p, stay in zip(self.pieces, self.stays, strict=True) if not stay)

    @property
    def resident_bytes(self) -> int:
        """Of weights that stay, as stored."""
        return sum(piece.bytes for piece in self.resident)

    @property
    def streamed_bytes(self) -> int:
        """Of the others, as stored."""
        return sum(piece.bytes for piece in self.streamed)

    @property
    def moved_bytes(self) -> int:
        """Copied in one call."""
        return sum(piece.moved for piece in self.streamed)

    @property
    def bytes(self) -> int:
        """On the card, all in all."""
        return self.resident_bytes + self.ring.bytes + self.conversion


def settle(
    resident: Option,
    streamed: Sequence[Option],
    *,
    room: int,
    budget: int,
    mode: Mode = "auto",
    limits: Limits | None = None,
) -> Residency | None:
    """The residency that costs the least time within `room` bytes; None where none fits.

    Args:
        resident: everything stays.
        streamed: what else there is to choose from.
        room: for resident weights, ring and conversion together.
        budget: two slots should take no more than a quarter of it.
        limits: where they are unknown, the ring is kept within that quarter, slots that overlap
            copies with compute are preferred, and as few bytes as possible are copied.
    """
    limits = limits or Limits()
    offered = [option for option in streamed if option.least <= room]
    fits_whole = resident.least <= room
    if mode == "high" or (mode == "auto" and fits_whole):
        return _residency(resident, [True] * len(resident.pieces)) if fits_whole else None
    if mode == "low" and fits_whole and limits.hidden is None:
        return _residency(resident, [True] * len(resident.pieces))
    if mode == "none":
        offered = [option for option in offered if option.everything]
    offered = [o for o in offered if o.ring.level != "rows"] or offered
    if fits_whole and (mode != "none" or not streamed):
        offered.append(resident)
    if not offered:
        return None
    best = _best(offered, room=room, budget=budget, mode=mode, limits=limits)
    return _residency(best, _who_stays(best, room=room, mode=mode, limits=limits))


def least_option(resident: Option, streamed: Iterable[Option], *, mode: Mode) -> Option:
    """The choice that takes the least: `settle` has an answer exactly if that fits."""
    offered = [o for o in streamed if mode != "high" and (mode != "none" or o.everything)]
    if mode != "none" or not offered:
        offered.append(resident)
    return min(offered, key=lambda option: option.least)


def spread(
    pieces: Sequence[Piece], stays: Sequence[bool], room: int, *, at_least: int = 0
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
    """
    total = sum(piece.bytes for piece in pieces)
    free = sum(p.bytes for p, stay in zip(pieces, stays, strict=True) if not stay)
    need = min(free, max(total - room, at_least))
    goal, streamed, got = need, set[int](), 0
    for _ in range(_WALKS):
        if got >= need:
            break
        streamed = _walk(pieces, stays, goal)
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


def _walk(pieces: Sequence[Piece], stays: Sequence[bool], goal: int) -> set[int]:
    streamed = set()
    owed = 0.0
    for at, piece in enumerate(pieces):
        owed += goal * piece.time
        if not stays[at] and piece.bytes and 2 * owed >= piece.bytes:
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


def _who_stays(option: Option, *, room: int, mode: Mode, limits: Limits) -> list[bool]:
    stays = [option.stays(piece) for piece in option.pieces]
    if mode == "none":
        return stays
    left = room - option.fixed
    hidden = _hideable(option, mode, limits)
    resident = spread(option.pieces, stays, left, at_least=hidden)
    if not hidden:
        return resident
    gone = [at for at, stay in enumerate(resident) if not stay]
    excess = sum(option.pieces[at].bytes for at in gone) - hidden
    kept = sum(p.bytes for p, stay in zip(option.pieces, resident, strict=True) if stay)
    for at in sorted(gone, key=lambda at: (option.pieces[at].bytes, at)):
        if excess > 0 and kept + option.pieces[at].bytes <= left:
            resident[at] = True
            excess -= option.pieces[at].bytes
            kept += option.pieces[at].bytes
    return resident


def _hideable(option: Option, mode: Mode, limits: Limits) -> int:
    """Stored bytes that mode ``low`` streams at no cost in time."""
    if mode != "low" or limits.hidden is None or not option.ring.overlaps:
        return 0
    return int(limits.hidden / option.ratio)


def _best(
    offered: Sequence[Option], *, room: int, budget: int, mode: Mode, limits: Limits
) -> Option:
    """By predicted seconds; of those as good, within a quarter of the budget, then the coarsest.

    Then what keeps the least resident for want of a slot: forced pieces cannot be spread.
    """
    moved = [_predicted(option, room=room, mode=mode, limits=limits) for option in offered]
    within = [_QUARTER * option.ring.bytes <= budget for option in offered]
    overlaps = [option.ring.overlaps or option.ring.level == "none" for option in offered]
    if limits.hidden is None:
        scores = list(moved)
        keep = next(
            kept
            for kept in (
                [at for at in range(len(offered)) if within[at] and overlaps[at]],
                [at for at in range(len(offered)) if within[at]],
                list(range(len(offered))),
            )
            if kept
        )
    else:
        keep = list(range(len(offered)))
        scores = [
            limits.seconds(bytes_, overlaps=overlap) or 0.0
            for bytes_, overlap in zip(moved, overlaps, strict=True)
        ]
    least = min(scores[at] for at in keep)
    as_good = [at for at in keep if scores[at] <= least * _AS_GOOD]

    def order(at: int) -> tuple[bool, bool, int, bool, float, float, int]:
        option = offered[at]
        last = mode == "low" and option.ring.level == "none"
        used = option.staying + option.free - moved[at] / option.ratio + option.fixed
        return (
            not within[at],
            last,
            _COARSE[option.ring.level],
            not overlaps[at],
            used if mode == "low" else option.staying,
            scores[at],
            option.ring.bytes,
        )

    return offered[min(as_good, key=order)]


def _predicted(option: Option, *, room: int, mode: Mode, limits: Limits) -> float:
    """About how many bytes a call will copy."""
    over = max(0, option.free + option.least - room)
    needed = option.free if mode == "none" else over
    hidden = min(option.free, _hideable(option, mode, limits))
    return max(needed, hidden) * option.ratio


def _residency(option: Option, stays: Sequence[bool]) -> Residency:
    ring = NO_RING if all(stays) else option.ring
    return Residency(option.pieces, tuple(stays), ring, option.conversion)
