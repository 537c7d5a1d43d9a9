"""What was measured of this machine, kept for plans that must not take seconds. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tightfit import kept

VERSION = 1
_FILE = "machine.json"


@dataclass(frozen=True)
class MeasuredCard:
    """One device, as it was measured here; None what was not.

    Attributes:
        link: bytes a second from pinned host memory.
        staged: likewise from memory that is not pinned.
        context: bytes that the context of a process costs.
    """

    link: int | None = None
    staged: int | None = None
    context: int | None = None


@dataclass(frozen=True)
class Machine:
    """This machine.

    Attributes:
        cards: by UUID.
        disk: bytes a second, reading what is not in memory; None where it was not measured.
    """

    cards: Mapping[str, MeasuredCard] = field(default_factory=dict)
    disk: int | None = None

    @classmethod
    def read(cls, folder: Path) -> Machine:
        """What is kept in `folder`; a file that cannot be read is as good as none."""
        stored = kept.read(folder / _FILE)
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            if stored["version"] == VERSION:
                cards = {
                    str(uuid): MeasuredCard(**{name: _bytes(v) for name, v in card.items()})
                    for uuid, card in stored["cards"].items()
                }
                return cls(cards, _bytes(stored["disk"]))
        return cls()

    def keep(self, folder: Path) -> None:
        """Write it beside what is kept already; what was not measured now stays as it was."""
        with kept.turn(folder / _FILE):
            before = Machine.read(folder)
            cards = dict(before.cards)
            for uuid, card in self.cards.items():
                known = {name: value for name, value in asdict(card).items() if value is not None}
                cards[uuid] = replace(cards.get(uuid, MeasuredCard()), **known)
            values = {
                "version": VERSION,
                "cards": {uuid: asdict(card) for uuid, card in cards.items()},
                "disk": before.disk if self.disk is None else self.disk,
            }
            kept.write(folder / _FILE, values)


def _bytes(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or value <= 0:
        raise ValueError(value)
    return value
