"""How a job stands now: its events, one after another, as one ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tightfit.units import format_bytes

_LAST = 6


@dataclass
class Network:
    """The weights of one network: bytes that stay, that are streamed, and the ring's."""

    resident: int = 0
    streamed: int = 0
    ring: int = 0
    rests: bool = False


@dataclass
class Standing:
    """What all events so far come to; sizes in bytes, None before it is known.

    Attributes:
        allocated, reserved, peak, peak_reserved, budget, others: of the card.
        stage, rung: what is done now.
        done, total: steps or tiles of that.
        networks: by name.
        ledger: what the last plan foresaw, by line.
        last: what happened last, in words, the newest last.
    """

    allocated: int | None = None
    reserved: int | None = None
    peak: int = 0
    peak_reserved: int = 0
    budget: int | None = None
    others: int | None = None
    stage: str = ""
    rung: str = ""
    done: int = 0
    total: int = 0
    networks: dict[str, Network] = field(default_factory=dict)
    ledger: dict[str, int | None] = field(default_factory=dict)
    last: list[str] = field(default_factory=list)

    def take(self, event: Mapping[str, Any]) -> None:
        """One event more; kinds that are not known are passed over."""
        match event["event"]:
            case "memory":
                self._look(event)
            case "placed" | "ring" | "evicted" | "moved" | "rests":
                self._weights(event)
            case "plan":
                self.budget = event.get("budget_bytes", self.budget)
                self.ledger = dict(event["ledger"])
            case "stage":
                self.stage, self.rung, self.done, self.total = event["stage"], "", 0, 0
            case "attempt":
                self.stage, self.rung, self.done, self.total = event["stage"], event["rung"], 0, 0
            case "step" | "tile":
                self.done, self.total = event["done"], event["total"]
            case "others":
                self.others = event["bytes"]
        said = _said(event)
        if said:
            self.last = [*self.last, said][-_LAST:]

    def _look(self, event: Mapping[str, Any]) -> None:
        self.allocated, self.reserved = event["allocated_bytes"], event.get("reserved_bytes")
        self.peak = max(self.peak, self.allocated or 0)
        self.peak_reserved = max(self.peak_reserved, self.reserved or 0)

    def _weights(self, event: Mapping[str, Any]) -> None:
        network = self.networks.setdefault(event.get("network") or "weights", Network())
        kind, size = event["event"], event["bytes"]
        if kind == "placed":
            network.rests = False
            if event["state"] == "streamed":
                network.streamed += size
            else:
                network.resident += size
            self._look({"allocated_bytes": event["allocated_bytes"], **event})
        elif kind == "ring":
            network.ring += size
        elif kind == "evicted":
            network.resident = max(0, network.resident - size)
        elif kind == "moved":
            network.resident = size
        else:
            self.networks[event.get("network") or "weights"] = Network(rests=True)


def _said(event: Mapping[str, Any]) -> str:
    """An event that people want to read of, in words; else nothing."""
    match event["event"]:
        case "moved":
            sizes = f"{format_bytes(event['before_bytes'])} -> {format_bytes(event['bytes'])}"
            return f"{event['network']}: {sizes} resident, since {event['why']}"
        case "rests":
            return f"{event['network']} rests: {format_bytes(event['bytes'])} came free"
        case "oom":
            return f"{event['stage']}, {event['rung']}: out of memory"
        case "skipped":
            return f"{event['stage']}, {event['rung']}: skipped, {event['reason']}"
        case "done":
            return f"{event['stage']}, {event['rung']}: done"
        case "wait":
            return f"waited {event['seconds']:.2f} s: {event['reason']}"
    return ""
