"""Which block was where at each step: resident, streamed, packed, or not on the card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tightfit.report.page.fields import Event, at, rows, text, whole

STATES = ("resident", "streamed", "packed", "evicted")
"""``packed`` weights stay on the card, losslessly compressed; ``evicted`` ones lie on the host."""
_MOST_COLUMNS = 120
_MOST_ROWS = 90
_AWAY = ("evicted", "rests")


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
        rows: in the order in which blocks were placed.
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
    for event in sorted(events, key=at):
        books.enter(event)
    if not books.states:
        return None
    books.end_column()
    every = -(-len(books.columns) // _MOST_COLUMNS)
    kept = [*range(every - 1, len(books.columns), every)]
    if kept[-1:] != [len(books.columns) - 1]:
        kept.append(len(books.columns) - 1)
    found = [
        Row(name, books.bytes.get(name), 1, _runs([history[column] for column in kept]))
        for name, history in books.histories().items()
    ]
    if len(found) > _MOST_ROWS:
        found = _together(found)
    return Residency(tuple(books.columns[column] for column in kept), tuple(found))


class _Books:
    """The state of every block as events come in, and what it was at the end of each column."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.bytes: dict[str, int] = {}
        self.columns: list[str] = []
        self._snapshots: list[dict[str, str]] = []
        self._placed: dict[str, str] = {}
        self._network: dict[str, str] = {}
        self._by_steps = False
        self._name = "load"

    def enter(self, event: Event) -> None:
        kind = event["event"]
        if kind == "placed":
            self._place(event)
        elif kind in _AWAY:
            for block in self._meant(event):
                self.states[block] = "evicted"
        elif kind == "moved":
            state = text(event, "state")
            for block in self._meant(event):
                self.states[block] = state if state in STATES else self._placed[block]
        elif kind == "streamed_step":
            self._step(event)
            if not self._by_steps:
                self.end_column()
        elif kind == "step":
            if not self._by_steps and len(self.columns) > 1:
                # Calls of a network were columns until now; a step may have several.
                del self.columns[1:], self._snapshots[1:]
            self._by_steps = True
            self.end_column()

    def end_column(self) -> None:
        if self.columns and not self.states:
            return
        self.columns.append(self._name)
        self._snapshots.append(dict(self.states))
        self._name = f"step {len(self.columns)}"

    def histories(self) -> dict[str, list[str | None]]:
        return {name: [each.get(name) for each in self._snapshots] for name in self.states}

    def _place(self, event: Event) -> None:
        block = text(event, "block", "name") or f"block {text(event, 'n') or len(self.states)}"
        state = text(event, "state")
        self.states[block] = self._placed[block] = state if state in STATES else "resident"
        self._network[block] = text(event, "network")
        amount = whole(event, "bytes")
        if amount is not None:
            self.bytes[block] = amount

    def _step(self, event: Event) -> None:
        if not self.columns:
            self.end_column()
        for use in rows(event, "blocks"):
            block = text(use, "name")
            if block:
                self.states[block] = self._placed[block] = "streamed"
                self._network.setdefault(block, text(event, "network"))
                moved = whole(use, "moved_bytes")
                if moved:
                    self.bytes.setdefault(block, moved)

    def _meant(self, event: Event) -> list[str]:
        """The blocks that an event is about: one, or all of a network."""
        block, network = text(event, "block"), text(event, "network")
        if block:
            return [block] if block in self.states else []
        return [name for name, of in self._network.items() if network and of in (network, "")]


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
