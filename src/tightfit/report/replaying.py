"""What was recorded of one card, played through the model of another card's allocator."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from tightfit.allocators import ASYNC_GRAIN
from tightfit.errors import InputError, UsageError
from tightfit.plan.slack import replay
from tightfit.report.trace_file import Trace
from tightfit.units import parse_bytes

_NEEDS = re.compile(r"^Needs ([\d.]+\s*[KMGT]?i?B)", re.MULTILINE)
_REFUSED = re.compile(r"[Tt]ried to allocate ([\d.]+\s*[KMGT]?i?B)")


@dataclass(frozen=True)
class Played:
    """What a replay came to, in bytes.

    Attributes:
        moves: how many were replayed.
        held: was there before the first of them.
        refused: the largest request that the recorded card turned down, granted here where it fits.
        allocated, reserved: the most.
        needed: the most that is reserved where nothing bounds it, or what the job said it needs.
        fits: whether every request was served.
        exact: they were single moves of an allocator, not looks at its sum.
    """

    moves: int
    held: int
    refused: int
    allocated: int
    reserved: int
    needed: int
    fits: bool
    exact: bool


def play(trace: Trace, *, allocator: str, room: int, grain: int = ASYNC_GRAIN) -> Played:
    """Replay what `trace` has on `allocator`, one of `allocators.KINDS`, with `room` bytes.

    Single moves where the trace has them, else each change from one look at memory to the next.
    Requests that were refused are made here as well, in their place. Where a job was refused before
    it tried, what its error says that it needs has to fit. Raises `InputError` for a
    trace that tells nothing of memory.
    """
    exact = any(event["event"] == "allocate" for event in trace.events)
    moves, held, refused = _moves(trace) if exact else _looks(trace)
    if not moves and not held:
        raise InputError("Nothing is recorded of memory here, so there is nothing to replay.")
    first = [held] if held else []
    bound = replay(moves, allocator, held=first, limit=room, grain=grain)
    free = replay(moves, allocator, held=first, grain=grain)
    needs = 0 if refused else _needs(trace)
    return Played(
        len(moves),
        held,
        refused,
        bound.allocated if bound.holds else free.allocated,
        bound.reserved if bound.holds else free.reserved,
        max(free.reserved, needs),
        bound.holds and max(held, needs) <= room,
        exact,
    )


def _moves(trace: Trace) -> tuple[list[tuple[int, int]], int, int]:
    """(key, bytes) of each move, the bytes held before, and the largest that was refused.

    A free without an address is of the newest of that size; where there is none, of the newest that
    come to it. What was there before is what looks at memory counted beyond the moves until then:
    the middle one, since a look may be a move early or late.
    """
    moves: list[tuple[int, int]] = []
    by_address: dict[int, int] = {}
    live = _Live()
    beyond: list[int] = []
    running = refused = 0
    for event in trace.events:
        kind = event["event"]
        if kind == "allocate":
            key = len(moves)
            moves.append((key, event["bytes"]))
            running += event["bytes"]
            if event.get("address") is not None:
                by_address[event["address"]] = key
            else:
                live.add(key, event["bytes"])
        elif kind == "free":
            running -= event["bytes"]
            if event.get("address") is None:
                moves += [(gone, 0) for gone in live.end(event["bytes"])]
            elif event["address"] in by_address:
                moves.append((by_address.pop(event["address"]), 0))
        elif kind == "memory":
            beyond.append(event["allocated_bytes"] - running)
        elif kind == "oom":
            refused = max(refused, _refuse(event.get("text", ""), moves))
    held = sorted(beyond)[len(beyond) // 2] if beyond else 0
    return moves, max(0, held), refused


class _Live:
    """Allocations without addresses that have not ended, by size."""

    def __init__(self) -> None:
        self._by_size: dict[int, list[int]] = defaultdict(list)

    def add(self, key: int, size: int) -> None:
        self._by_size[size].append(key)

    def end(self, size: int) -> list[int]:
        """Keys of those that are freed with so many bytes."""
        gone = []
        while size > 0:
            one = size
            if not self._by_size.get(size):
                fitting = [each for each, keys in self._by_size.items() if keys and each <= size]
                one = max(fitting, default=0)
            if not one:
                break
            gone.append(self._by_size[one].pop())
            size -= one
        return gone


def _looks(trace: Trace) -> tuple[list[tuple[int, int]], int, int]:
    """As `_moves`, of sums: each rise is one allocation, each fall ends the newest of them.

    What was there at the first look is the first allocation.
    """
    moves: list[tuple[int, int]] = []
    live: list[tuple[int, int]] = []
    last = refused = 0
    for event in trace.of("memory", "oom"):
        if event["event"] == "oom":
            refused = max(refused, _refuse(event.get("text", ""), moves))
            continue
        now = event["allocated_bytes"]
        if now > last:
            live.append((len(moves), now - last))
            moves.append(live[-1])
        falls = last - now
        while falls > 0 and live:
            key, size = live.pop()
            moves.append((key, 0))
            if size > falls:
                live.append((len(moves), size - falls))
                moves.append(live[-1])
            falls -= size
        last = now
    return moves, 0, refused


def _needs(trace: Trace) -> int:
    """Bytes that the error of a job says it would need; 0 where it does not say."""
    found = _NEEDS.search(str(trace.header.get("error") or ""))
    return 0 if found is None else _bytes(found[1])


def _bytes(text: str) -> int:
    """A size as messages write it; 0 where it is none."""
    try:
        return parse_bytes(text)
    except UsageError:
        return 0


def _refuse(text: str, moves: list[tuple[int, int]]) -> int:
    """The request that `text` says was turned down, made and ended in `moves`; its bytes.

    Right after the last allocation: what was freed since then was freed because of it.
    """
    found = _REFUSED.search(text)
    if found is None:
        return 0
    size = _bytes(found[1])
    if not size:
        return 0
    at = next((at for at in range(len(moves), 0, -1) if moves[at - 1][1]), 0)
    key = -1 - len(moves)  # of its own: the others count from 0
    moves[at:at] = [(key, size), (key, 0)]
    return size
