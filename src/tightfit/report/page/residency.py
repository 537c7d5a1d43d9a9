"""Which block was where at each step: resident, streamed, packed, or not on the card."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from tightfit.report.page.fields import Event, in_order, rows, text, whole
from tightfit.report.page.names import Key, label

STATES = ("resident", "streamed", "packed", "evicted")
"""``packed`` weights stay on the card, losslessly compressed; ``evicted`` ones lie on the host."""
T = TypeVar("T")
_NUMBER = re.compile(r"\d{1,9}")
_MOST_COLUMNS = 120
_MOST_ROWS = 90


@dataclass(frozen=True)
class Run:
    """Columns [start, stop) in which a block is in one state; None before it is placed."""

    start: int
    stop: int
    state: str | None


@dataclass(frozen=True)
class Row:
    """One block, or neighbours that were always in the same state.

    Attributes:
        name: of the block, or of the first and the last.
        bytes: of all of them; None where the trace does not say.
        count: how many blocks it stands for.
        runs: its states, column by column, run by run.
    """

    name: str
    bytes: int | None
    count: int
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Residency:
    """The map.

    Attributes:
        columns: what each column is: ``load``, ``step 1``, …
        rows: blocks of one name beside one another, by their numbers.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def states(self) -> tuple[str, ...]:
        """Those that occur."""
        seen = {run.state for row in self.rows for run in row.runs}
        return tuple(state for state in STATES if state in seen)


def residency(events: Sequence[Event]) -> Residency | None:
    """The map of a trace; None where no block is told of."""
    books = _Books()
    for event in in_order(events):
        books.enter(event)
    if not books.states:
        return None
    books.close()
    every = -(-len(books.columns) // _MOST_COLUMNS)
    kept = [*range(every - 1, len(books.columns), every)]
    if kept[-1:] != [len(books.columns) - 1]:
        kept.append(len(books.columns) - 1)
    networks = len({network for network, _ in books.states})
    found = [
        Row(
            label(key, networks=networks),
            books.bytes.get(key),
            1,
            _runs([history[column] for column in kept]),
        )
        for key, history in _in_order(books.histories())
    ]
    if len(found) > _MOST_ROWS:
        found = _together(found)
    return Residency(tuple(books.columns[column] for column in kept), tuple(found))


class _Books:
    """The state of every block as events come in, and what it was at the end of each column."""

    def __init__(self) -> None:
        self.states: dict[Key, str] = {}
        self.bytes: dict[Key, int] = {}
        self.columns: list[str] = []
        self._snapshots: list[dict[Key, str]] = []
        self._placed: dict[Key, str] = {}
        self._resting: set[Key] = set()
        self._by_steps = False
        self._steps = 0
        self._every = 1

    def enter(self, event: Event) -> None:
        kind = event["event"]
        network, block = text(event, "network"), text(event, "block")
        if kind == "placed":
            self._place(event)
        elif kind == "evicted" and (network, block) in self.states:
            self.states[network, block] = "evicted"
        elif kind == "rests":
            if not self.columns and self.states:
                self.end_column()
            for key in [key for key in self.states if key[0] == network]:
                self.states[key] = "evicted"
                self._resting.add(key)
        elif kind == "moved":
            self._wake(network)
        elif kind == "streamed_step":
            self._step(event)
        elif kind == "step":
            if not self._by_steps and len(self.columns) > 1:
                # Calls of a network were columns until now; a step may have several.
                del self.columns[1:], self._snapshots[1:]
                self._steps = self._every = 1
            self._by_steps = True
            self.end_column()

    def end_column(self) -> None:
        """Keep the states; of very many steps, every second, fourth … is kept."""
        name = f"step {self._steps}" if self._steps else "load"
        if self._steps % self._every == 0:
            self._keep(name)
        self._steps += 1
        if len(self.columns) > 2 * _MOST_COLUMNS:
            self._every *= 2
            self.columns, self._snapshots = self.columns[::2], self._snapshots[::2]

    def _keep(self, name: str) -> None:
        self.columns.append(name)
        self._snapshots.append(dict(self.states))

    def close(self) -> None:
        """The end is a column of its own where something changed since the last step."""
        if not self._snapshots or self._snapshots[-1] != self.states:
            self._keep("the end" if self.columns else "load")

    def histories(self) -> dict[Key, list[str | None]]:
        return {key: [each.get(key) for each in self._snapshots] for key in self.states}

    def _place(self, event: Event) -> None:
        block = text(event, "block", "name") or f"block {text(event, 'n') or len(self.states)}"
        key, state = (text(event, "network"), block), text(event, "state")
        self.states[key] = self._placed[key] = state if state in STATES else "resident"
        self._resting.discard(key)
        amount = whole(event, "bytes")
        if amount is not None:
            self.bytes[key] = amount

    def _step(self, event: Event) -> None:
        network = text(event, "network")
        if not self.columns and self.states:
            self.end_column()
        self._wake(network)
        for use in rows(event, "blocks"):
            key = (network, text(use, "name"))
            if key[1]:
                packed = self.states.get(key) == "packed" and not whole(use, "moved_bytes")
                self.states[key] = self._placed[key] = "packed" if packed else "streamed"
                moved = whole(use, "moved_bytes")
                if moved:
                    self.bytes.setdefault(key, moved)
        if not self._by_steps and self.columns:
            self.end_column()

    def _wake(self, network: str) -> None:
        """A network that rested is back where its blocks had been placed."""
        for key in [key for key in self._resting if key[0] == network]:
            self.states[key] = self._placed[key]
            self._resting.discard(key)


def _in_order(histories: dict[Key, T]) -> list[tuple[Key, T]]:
    """Those of a network and a name (without its numbers) together, where the first of them was
    placed; by number among themselves."""
    first: dict[tuple[str, str], int] = {}

    def place(item: tuple[Key, T]) -> tuple[int, list[int]]:
        (network, block), _ = item
        stem = (network, _NUMBER.split(block, maxsplit=1)[0])
        numbers = [int(digits) for digits in _NUMBER.findall(block)]
        return first.setdefault(stem, len(first)), numbers

    return sorted(histories.items(), key=place)


def _runs(history: Sequence[str | None]) -> tuple[Run, ...]:
    found, column = [], 0
    for state, same in groupby(history):
        length = len(list(same))
        found.append(Run(column, column + length, state))
        column += length
    return tuple(found)


def _together(found: Sequence[Row]) -> list[Row]:
    merged = []
    for _, same in groupby(found, key=lambda row: row.runs):
        each = list(same)
        if len(each) == 1:
            merged.append(each[0])
            continue
        known = [row.bytes for row in each if row.bytes is not None]
        name = f"{each[0].name} … {each[-1].name}"
        merged.append(Row(name, sum(known) if known else None, len(each), each[0].runs))
    return merged
