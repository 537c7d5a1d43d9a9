"""Who held what when: the weights that were placed, as changes over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.report.page.fields import Event, at, text, whole

_MOST = 4000
_LEFT = ("evicted", "rests")


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
    """From what was placed and what left; streamed blocks hold nothing of their own."""
    names: dict[str, int] = {}
    of_network: dict[str, list[str]] = {}
    changes: list[tuple[float, int, int]] = []
    for event in sorted(events, key=at):
        kind = event["event"]
        block, network = text(event, "block"), text(event, "network")
        if kind == "placed" and block:
            held = 0 if text(event, "state") == "streamed" else whole(event, "bytes") or 0
            of_network.setdefault(network, []).append(block)
            changes.append((at(event), names.setdefault(block, len(names)), held))
        elif kind in _LEFT:
            meant = [block] if block else of_network.get(network, [])
            changes += [(at(event), names[each], 0) for each in meant if each in names]
    return Holders(tuple(names), tuple(_fewer(changes)))


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
