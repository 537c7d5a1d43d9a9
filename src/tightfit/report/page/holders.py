"""Who held what when: the weights that were placed, as changes over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.report.page.fields import Event, at, in_order, text, whole
from tightfit.report.page.names import Key, label, networks_of

_MOST = 4000


@dataclass(frozen=True)
class Holders:
    """Attributes:
    names: blocks and networks.
    changes: (seconds, index of a name, bytes it holds from then on), in order.
    """

    names: tuple[str, ...]
    changes: tuple[tuple[float, int, int], ...]

    def at(self, time: float) -> dict[str, int]:
        """What each held at a time; those that held nothing left out."""
        held: dict[str, int] = {}
        for when, name, amount in self.changes:
            if when > time:
                break
            held[self.names[name]] = amount
        return {name: amount for name, amount in held.items() if amount}


def holders(events: Sequence[Event]) -> Holders:
    """From what was placed and what left, and the rings; streamed blocks hold nothing of their
    own."""
    several = networks_of(events)
    names: dict[Key, int] = {}
    changes: list[tuple[float, int, int]] = []
    held: dict[Key, int] = {}
    resting: dict[Key, int] = {}

    def note(event: Event, key: Key, amount: int) -> None:
        held[key] = amount
        changes.append((at(event), names.setdefault(key, len(names)), amount))

    for event in in_order(events):
        kind, network = event["event"], text(event, "network")
        key = (network, text(event, "block"))
        if kind == "placed" and key[1]:
            streams = text(event, "state") == "streamed"
            resting.pop(key, None)
            note(event, key, 0 if streams else whole(event, "bytes") or 0)
        elif kind == "ring":
            note(event, (network, "ring"), whole(event, "bytes") or 0)
        elif kind == "evicted" and key in held:
            note(event, key, 0)
        elif kind == "rests":
            for each in [each for each in held if each[0] == network and held[each]]:
                resting[each] = held[each]
                note(event, each, 0)
        elif kind in ("moved", "streamed_step"):
            for each in [each for each in resting if each[0] == network]:
                note(event, each, resting.pop(each))
    return Holders(tuple(label(key, networks=several) for key in names), tuple(_fewer(changes)))


def _fewer(changes: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Of each group of neighbours, the last of each name."""
    group = -(-len(changes) // _MOST) if changes else 1
    if group == 1:
        return changes
    kept = []
    for first in range(0, len(changes), group):
        last = {name: (time, name, held) for time, name, held in changes[first : first + group]}
        kept += sorted(last.values())
    return kept
