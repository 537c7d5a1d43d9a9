"""The fine level: every single move of a card's allocator, from whoever can tell of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tightfit.card.base import Card
from tightfit.card.history import Entry, recorded
from tightfit.units import format_bytes
from tightfit.watch.callers import caller
from tightfit.watch.events import Allocate, Event, Free, Release, Reserve, Unseen
from tightfit.watch.recorder import Recorder
from tightfit.watch.tensors import TensorAccount

_MOST = 200_000
"""Entries of an allocator's history that are kept at once."""
_LOST = (
    "the allocator's history keeps so many moves and no more: the oldest of a stretch are lost, "
    "and single moves do not add up to what was held. Looks at the card and peaks are right"
)
_ROUNDING, _LITTLE = 0.05, 1 << 20
"""An allocator rounds up by no more than such a part; of less than that much nobody can tell."""
_ROUNDED = "what the allocator rounds up"
"""Its history has what was asked for."""
_UNHEARD = "what was there before, or came between"
_KINDS_OF_ONE = 2
"""Of a history's entries so many times fewer are moves, at least: a free is in it twice."""
_KINDS: dict[str, type[Allocate | Free | Reserve | Release]] = {
    "allocate": Allocate,
    "free": Free,
    "reserve": Reserve,
    "release": Release,
}


@contextmanager
def moves_told(card: Card, recorder: Recorder, *, by: str | None = None) -> Iterator[None]:
    """While inside, `recorder` is told of every move, if it is one for the fine level.

    On CUDA they come from the history of the caching allocator, after the block; on a virtual card
    as they are made. Where neither is to be had, which is under cudaMallocAsync, on the host, and
    while somebody else records a history, an account of tensors stands in, and `unseen` says what
    it leaves out. No allocator is ever changed.

    Args:
        card, recorder: whose moves, and who is told.
        by: who asks for all of them. An allocator's history is then kept without the code that
            asked: to read that takes the host milliseconds for each thousand moves.
    """
    if not recorder.fine or recorder.hears_moves:
        yield
        return
    recorder.hears_moves = True
    try:
        with _moves_told(card, recorder, by):
            yield
    finally:
        recorder.hears_moves = False


def _catch_up(card: Card, recorder: Recorder) -> None:
    """What came and went while nobody listened is told as one, so that the sums stay right."""
    allocated, reserved = _held(card)
    taken = reserved - recorder.seen[1]
    if taken > 0:
        recorder.tell(Reserve(taken))
    _even_out(recorder, allocated, _UNHEARD)
    if taken < 0:
        recorder.tell(Release(-taken))


def _even_out(recorder: Recorder, allocated: int, by: str) -> None:
    """All that was told comes to `allocated` bytes."""
    more = allocated - recorder.live_bytes
    if more > 0:
        recorder.tell(Allocate(more, by=by))
    elif more < 0:
        recorder.tell(Free(-more))


def _held(card: Card) -> tuple[int, int]:
    """Allocated and reserved bytes now; 0 where nobody counts."""
    now = card.read()
    return now.allocated or 0, now.reserved or 0


@contextmanager
def _moves_told(card: Card, recorder: Recorder, by: str | None) -> Iterator[None]:
    if card.kind == "virtual":
        with _kept_up(card, recorder), card.observe(_Observed(recorder, card)):
            yield
        return
    entries: list[Entry] | None = None
    try:
        with recorded(card, limit=_MOST, stacks=by is None) as entries:
            source = _account if entries is None else _kept_up
            with source(card, recorder):
                yield
    finally:
        if entries is not None:
            for entry in entries:
                recorder.tell(_event(entry, by), at=_at(entry, recorder))
            held, _ = recorder.seen
            if _lacks(entries, held - recorder.live_bytes, held):
                recorder.tell(Unseen(_LOST))
            _even_out(recorder, held, _ROUNDED)


@contextmanager
def _kept_up(card: Card, recorder: Recorder) -> Iterator[None]:
    """The sums stay right, whatever comes and goes between two blocks."""
    _catch_up(card, recorder)
    try:
        yield
    finally:
        recorder.seen = _held(card)


class _Observed:
    """Moves, from what a card says it holds after each."""

    def __init__(self, recorder: Recorder, card: Card) -> None:
        self._recorder = recorder
        self._allocated, self._reserved = _held(card)

    def __call__(self, allocated: int, reserved: int) -> None:
        more, taken = allocated - self._allocated, reserved - self._reserved
        self._allocated, self._reserved = allocated, reserved
        tell = self._recorder.tell
        if taken > 0:
            tell(Reserve(taken))
        if more > 0:
            tell(Allocate(more, by=caller()))
        elif more < 0:
            tell(Free(-more))
        if taken < 0:
            tell(Release(-taken))
        self._recorder.memory(allocated, reserved)


@contextmanager
def _account(card: Card, recorder: Recorder) -> Iterator[None]:
    def moved(address: int, size: int) -> None:
        if size > 0:
            recorder.tell(Allocate(size, address, caller()))
        else:
            recorder.tell(Free(-size, address))

    if not recorder.counts["unseen"]:
        recorder.tell(Unseen(_unseen(card)))
    with TensorAccount(card.device, moved) as account:
        before = account.live_bytes
        yield
    left = account.live_bytes - before
    peak = card.read().peak_allocated
    if peak is not None:
        recorder.tell(
            Unseen(
                f"tensors that were seen to come held {format_bytes(account.peak_bytes)} at once, "
                f"{format_bytes(left)} are still there; the allocator counted "
                f"{format_bytes(peak)} at its peak, with what was there before"
            )
        )


def _unseen(card: Card) -> str:
    """What cannot be seen on `card`, and why."""
    account = (
        "an account of tensors stands in. What operators take and give back within themselves, "
        "what the allocator takes beyond what is asked for, and which segment a tensor lies in "
        "cannot be seen"
    )
    if card.kind == "cuda" and card.allocator == "async":
        return (
            f"cudaMallocAsync keeps no history of single allocations: {account}. Peaks and sums "
            "are the allocator's own. To see every move, start with --allocator native; the "
            "allocator is never changed for a trace"
        )
    if card.kind == "cuda":
        return f"another program in this process records the allocator's history: {account}"
    return f"the allocator of {card.name} keeps no books: {account}"


def _lacks(entries: Sequence[Entry], missing: int, held: int) -> bool:
    """Whether the oldest may be lost: there are very many, and they are far from all of `held`."""
    return len(entries) * _KINDS_OF_ONE >= _MOST and abs(missing) > max(held, _LITTLE) * _ROUNDING


def _event(entry: Entry, by: str | None) -> Event:
    if entry.action == "allocate":
        return Allocate(entry.bytes, entry.address, entry.by or by)
    return _KINDS[entry.action](entry.bytes, entry.address)


def _at(entry: Entry, recorder: Recorder) -> float | None:
    return None if entry.at is None else recorder.at_epoch(entry.at)
