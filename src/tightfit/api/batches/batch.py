"""Items done one after the other; each is written, kept or failed, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tightfit.api.batches.items import Item
from tightfit.card import Card
from tightfit.errors import Cancelled, TightfitError
from tightfit.report.record import Report

FAILED = 1

Tell = Callable[[int, int, Item], None]
"""Told before each item: how many are behind, how many there are, which one comes."""
Finish = Callable[["ItemDone"], None]
"""Told after each."""


@dataclass(frozen=True)
class ItemDone:
    """What became of one item.

    Attributes:
        source, out: of it.
        outcome: ``written``, ``kept`` (it was there, and is right) or ``failed``.
        error: the sentence, where it failed.
        exit_code: of a job that does this item alone.
        report: of the job; None where it never got as far as a card, or was not needed.
        held_bytes: allocated on the card afterwards.
    """

    source: Path
    out: Path
    outcome: str
    error: str | None = None
    exit_code: int = 0
    report: Report | None = None
    held_bytes: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "source": str(self.source),
            "out": str(self.out),
            "outcome": self.outcome,
            "error": self.error,
            "exit_code": self.exit_code,
            "held_bytes": self.held_bytes,
            "report": None if self.report is None else self.report.as_dict(),
        }


@dataclass(frozen=True)
class Batch:
    """What became of all items, in their order.

    Attributes:
        command: ``encode`` or ``decode``.
        items: each of them.
    """

    command: str
    items: tuple[ItemDone, ...]

    def count(self, outcome: str) -> int:
        """How many items became this."""
        return sum(each.outcome == outcome for each in self.items)

    @property
    def good(self) -> bool:
        """Whether none failed."""
        return not self.count("failed")

    @property
    def exit_code(self) -> int:
        """0, or 1 where some failed; where all did for one reason, the code of that."""
        codes = {each.exit_code for each in self.items}
        if codes == {0}:
            return 0
        return codes.pop() if len(codes) == 1 else FAILED

    @property
    def summary(self) -> str:
        """One line."""
        parts = [f"{self.count('written')} written"]
        if self.count("kept"):
            parts.append(f"{self.count('kept')} were there already")
        parts.append(f"{self.count('failed')} failed")
        return f"{len(self.items)} inputs: {', '.join(parts)}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "version": 1,
            "command": self.command,
            "batch": True,
            "inputs": len(self.items),
            **{name: self.count(name) for name in ("written", "kept", "failed")},
            "items": [each.as_dict() for each in self.items],
        }


def run(
    command: str,
    items: Sequence[Item],
    do: Callable[[Item], Report],
    kept: Callable[[Item], bool],
    *,
    card: Card,
    tell: Tell | None = None,
    finish: Finish | None = None,
) -> Batch:
    """Do what is not `kept`; an item that fails leaves nothing on the card, and stops nothing.

    An interrupt goes on, with a note of what is done.
    """
    done: list[ItemDone] = []
    for item in items:
        if tell is not None:
            tell(len(done), len(items), item)
        try:
            done.append(do_one(item, do, kept, card))
            if finish is not None:
                finish(done[-1])
        except (KeyboardInterrupt, Cancelled) as stop:
            stop.add_note(
                f"{len(done)} of {len(items)} are done; the same command goes on from there"
            )
            raise
    return Batch(command, tuple(done))


def do_one(
    item: Item, do: Callable[[Item], Report], kept: Callable[[Item], bool], card: Card
) -> ItemDone:
    """Do one item, unless it is `kept`; only `Cancelled`, and what is no `Exception`, is raised."""
    try:
        if kept(item):
            return ItemDone(item.source, item.out, "kept")
        report = do(item)
        return ItemDone(item.source, item.out, "written", report=report, held_bytes=_held(card))
    except Cancelled:
        raise
    except Exception as error:
        return replace(failure(item, error), held_bytes=_held(card))


def failure(item: Item, error: Exception) -> ItemDone:
    """An item that ended in `error`, as texts: whoever keeps one keeps what its frames hold."""
    if isinstance(error, TightfitError):
        report = error.report if isinstance(error.report, Report) else None
        return ItemDone(item.source, item.out, "failed", str(error), error.exit_code, report)
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    said = f"The job failed: {type(error).__name__}: {first}"
    return ItemDone(item.source, item.out, "failed", said, FAILED)


def _held(card: Card) -> int | None:
    return card.read().allocated
