"""Which weights stay on the card, and which are copied for each use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tightfit.plan.streaming.pieces import Piece
from tightfit.plan.streaming.ring import NO_RING, Option, Ring
from tightfit.plan.streaming.simulate import step_seconds
from tightfit.plan.streaming.spread import spread

Mode = Literal["auto", "high", "low", "none"]
"""All resident where it fits, else planned · all resident or refused · only as much resident as
saves time · everything streamed."""
MODES: tuple[Mode, ...] = ("auto", "high", "low", "none")
_QUARTER = 4
_AS_GOOD = 1.02
"""Copying in larger pieces is worth this much of a step: fewer copies, events and stalls."""
_COARSE = {"none": 0, "block": 1, "leaf": 2, "rows": 3}
_LOOKS = 8


@dataclass(frozen=True)
class Limits:
    """What bounds one call: compute against link.

    Attributes:
        compute: seconds with everything resident; None is unknown.
        link: bytes a second; None is unknown.
        peer: likewise from a second card.
        parked: bytes that lie there at most.
        piece: seconds that one more streamed piece costs, whatever its size: hooks, events and the
            launch of its copy. It counts where ways are compared, and in no time that is told.
    """

    compute: float | None = None
    link: float | None = None
    piece: float = 20e-6
    peer: float | None = None
    parked: int = 0

    @property
    def hidden(self) -> float | None:
        """Bytes that can be copied behind the computation."""
        if self.compute is None or self.link is None:
            return None
        if not self.parked:
            return self.compute * self.link
        if self.peer is None:
            return None
        left = self.compute - self.parked / self.peer
        return self.compute * self.peer if left <= 0 else self.parked + left * self.link

    def copying(self, moved: float) -> float | None:
        """Seconds that copies of `moved` bytes take, those from the second card first."""
        near = min(moved, self.parked)
        if (near and self.peer is None) or (moved > near and self.link is None):
            return None
        return (near / self.peer if self.peer else 0.0) + (
            (moved - near) / self.link if self.link else 0.0
        )

    def seconds(self, moved: float, *, overlaps: bool) -> float | None:
        """Of one call that copies `moved` bytes: ``max(C, B/W)``, or ``C + B/W`` one by one."""
        copying = self.copying(moved)
        if self.compute is None or copying is None:
            return None
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

    def seconds(self, limits: Limits) -> float | None:
        """Of one call, waits included; None where `limits` are unknown."""
        overlaps = self.ring.overlaps or not self.streamed
        least = limits.seconds(self.moved_bytes, overlaps=overlaps)
        if least is None or not self.streamed or not overlaps:
            return least
        assert limits.compute is not None
        copying = limits.copying(self.moved_bytes)
        if not copying:
            return least
        played = step_seconds(
            self.pieces,
            self.stays,
            slots=self.ring.slots,
            compute=limits.compute,
            link=self.moved_bytes / copying,
        )
        return max(least, played)

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
    judge = _Judge(room, budget, mode, limits)
    return judge.best(offered)


def least_option(resident: Option, streamed: Iterable[Option], *, mode: Mode) -> Option:
    """The choice that takes the least: `settle` has an answer exactly if that fits."""
    offered = [o for o in streamed if mode != "high" and (mode != "none" or o.everything)]
    if mode != "none" or not offered:
        offered.append(resident)
    return min(offered, key=lambda option: option.least)


@dataclass(frozen=True)
class _Judge:
    """Compares choices within one room."""

    room: int
    budget: int
    mode: Mode
    limits: Limits

    def best(self, offered: Sequence[Option]) -> Residency:
        """By predicted seconds, or by bytes copied; of those as good, see `_rank`."""
        if self.limits.hidden is None:
            offered = self._preferred(offered)
            scored = [(self._bound(option), option) for option in offered]
            least = min(score for score, _ in scored)
            chosen = min((s for s in scored if s[0] <= least * _AS_GOOD), key=self._rank)
            return self._residency(chosen[1])
        found: list[tuple[float, Option]] = []
        least = float("inf")
        bounds = self._worth_a_look(offered)
        for bound, option in sorted(bounds, key=lambda each: (each[0], self._rank(each))):
            if bound > least * _AS_GOOD or len(found) == _LOOKS:
                break
            score = bound if self._hides(bound) else self._seconds(option)
            found.append((score, option))
            least = min(least, score)
        chosen = min((s for s in found if s[0] <= least * _AS_GOOD), key=self._rank)
        return self._residency(chosen[1])

    def _worth_a_look(self, offered: Sequence[Option]) -> list[tuple[float, Option]]:
        """Each with its bound, without slots that are smaller than others and not much better."""
        found: list[tuple[float, Option]] = []
        least: dict[tuple[str, int], float] = {}
        for option in sorted(offered, key=lambda option: -option.ring.slot_bytes):
            bound = self._bound(option)
            key = (option.ring.level, option.ring.slots)
            if bound * _AS_GOOD < least.get(key, float("inf")) or self.mode == "low":
                least[key] = bound
                found.append((bound, option))
        return found

    def _preferred(self, offered: Sequence[Option]) -> Sequence[Option]:
        """Where times are unknown: a modest ring that copies ahead, else a modest one, else any."""
        modest = [option for option in offered if self._modest(option)]
        return [option for option in modest if _overlaps(option)] or modest or offered

    def _modest(self, option: Option) -> bool:
        return _QUARTER * option.ring.bytes <= self.budget

    def _rank(
        self, scored: tuple[float, Option]
    ) -> tuple[bool, bool, int, bool, float, float, int]:
        """A modest ring, coarse pieces, copies ahead; few pieces that stay for want of a slot."""
        score, option = scored
        low = self._hides(score)
        used = option.least + option.free - self._moved(option) / option.ratio
        return (
            not self._modest(option),
            low and option.ring.level == "none",
            _COARSE[option.ring.level],
            not _overlaps(option),
            used if low else option.staying,
            score,
            option.ring.bytes,
        )

    def _hides(self, score: float) -> bool:
        """Whether mode ``low`` has what it wants: copying costs no time, so the least may stay."""
        return self.mode == "low" and score == self.limits.compute

    def _bound(self, option: Option) -> float:
        """Seconds that a call takes at least; bytes copied, where those are unknown."""
        moved = self._moved(option)
        bound = self.limits.seconds(moved, overlaps=_overlaps(option))
        if bound is None:
            return moved
        if self.mode == "low" or not option.moved:
            return bound
        return bound + self.limits.piece * len(option.pieces) * min(1.0, moved / option.moved)

    def _moved(self, option: Option) -> float:
        """About how many bytes a call copies."""
        needed = max(0, option.free + option.least - self.room)
        if self.mode == "none":
            needed = option.free
        return max(needed, min(option.free, self._hideable(option))) * option.ratio

    def _hideable(self, option: Option) -> int:
        """Stored bytes that mode ``low`` streams at no cost in time."""
        hidden = self.limits.hidden
        if self.mode != "low" or hidden is None or not option.ring.overlaps:
            return 0
        return int(hidden / option.ratio)

    def _seconds(self, option: Option) -> float:
        residency = self._residency(option)
        seconds = residency.seconds(self.limits) or 0.0
        return (
            seconds if self.mode == "low" else seconds + self.limits.piece * len(residency.streamed)
        )

    def _residency(self, option: Option) -> Residency:
        return _residency(option, self._who_stays(option))

    def _who_stays(self, option: Option) -> list[bool]:
        stays = [option.stays(piece) for piece in option.pieces]
        if self.mode == "none" or option.ring.level == "none":
            return stays
        left = self.room - option.fixed
        hidden = self._hideable(option)
        stays = spread(option.pieces, stays, left, at_least=hidden, ahead=option.ring.bytes)
        return _brought_back(option.pieces, stays, left, hidden) if hidden else stays


def _overlaps(option: Option) -> bool:
    return option.ring.overlaps or option.ring.level == "none"


def _brought_back(
    pieces: Sequence[Piece], stays: Sequence[bool], room: int, hidden: int
) -> list[bool]:
    """Pieces that would not be hidden stay after all, where there is room: the smallest first."""
    after = list(stays)
    kept = sum(piece.bytes for piece, stay in zip(pieces, stays, strict=True) if stay)
    excess = sum(piece.bytes for piece in pieces) - kept - hidden
    gone = [at for at, stay in enumerate(stays) if not stay]
    for at in sorted(gone, key=lambda at: (pieces[at].bytes, at)):
        if excess > 0 and kept + pieces[at].bytes <= room:
            after[at] = True
            excess -= pieces[at].bytes
            kept += pieces[at].bytes
    return after


def _residency(option: Option, stays: Sequence[bool]) -> Residency:
    ring = NO_RING if all(stays) else option.ring
    return Residency(option.pieces, tuple(stays), ring, option.conversion)
