"""One piece of memory that stayed, who holds it, and how that is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from tightfit.units import format_bytes


class Hold(StrEnum):
    """What keeps memory alive: the part of the chain that somebody has to let go."""

    INTERACTIVE = "interactive result"
    LOGGER = "logger"
    FUTURE = "future"
    EXCEPTION = "exception"
    THREAD = "finished thread"
    GENERATOR = "suspended call"
    CACHE = "function cache"
    CLOSURE = "closure"
    HISTORY = "autograd history"
    VIEW = "view"
    ATTRIBUTE = "module attribute"
    GLOBAL = "global"
    FRAME = "running frame"
    CYCLE = "cycle"
    UNSEEN = "unseen"
    HOST = "host memory"


ADVICE = {
    Hold.INTERACTIVE: "delete the name, or empty `Out`: the prompt keeps what it showed",
    Hold.LOGGER: "log text, not the objects: a handler keeps its records",
    Hold.FUTURE: "drop the future once its result was taken",
    Hold.EXCEPTION: "leave the `except` block before going on, and keep text in place of the error",
    Hold.THREAD: "let the thread's function return nothing that holds it, and drop the frame",
    Hold.GENERATOR: "exhaust or close it",
    Hold.CACHE: "clear the cache, or give it less to remember",
    Hold.CLOSURE: "drop the function, or hand it over as an argument",
    Hold.HISTORY: "call it under `torch.no_grad()`, or detach what is kept",
    Hold.VIEW: "clone the view, so that the base can go",
    Hold.ATTRIBUTE: "set the attribute to None after the call",
    Hold.GLOBAL: "drop the name",
    Hold.FRAME: "`del` the name, or leave the function",
    Hold.CYCLE: "break the cycle; it lasts until the collector comes by",
    Hold.UNSEEN: "look for an extension, or an array that shares the memory",
    Hold.HOST: "look at the allocation site",
}


@dataclass(frozen=True)
class Leak:
    """One storage that was not there at the first moment and is at the second.

    Attributes:
        bytes: of the whole storage, also where a small view pins it.
        shape: of the tensor at the end of the chain; None where it is no tensor.
        dtype: likewise, such as ``float32``.
        device: such as ``vcard:0``; ``cpu`` for the host.
        kind: what holds it.
        chain: from what is alive by itself (a module, a running frame) down to the tensor.
        site: ``file:line`` where it was made; None where nobody asked.
    """

    bytes: int
    shape: tuple[int, ...] | None
    dtype: str | None
    device: str
    kind: Hold
    chain: tuple[str, ...]
    site: str | None = None

    @property
    def path(self) -> str:
        """The chain in one line."""
        return " → ".join(self.chain)

    def matches(self, patterns: tuple[str, ...]) -> bool:
        """Whether one is the kind of hold, or a pattern (``*`` is anything) for the chain."""
        return any(each == self.kind or fnmatchcase(self.path, each) for each in patterns)

    def line(self) -> str:
        """For people: bytes, where, what holds it, and the chain."""
        made = f" (made at {self.site})" if self.site else ""
        return f"{format_bytes(self.bytes)} on {self.device}, {self.kind}: {self.path}{made}"

    def as_event(self) -> dict[str, Any]:
        """Figures of an event named ``leak``: JSON values, sizes in bytes."""
        return {
            "bytes": self.bytes,
            "shape": None if self.shape is None else list(self.shape),
            "dtype": self.dtype,
            "device": self.device,
            "hold": str(self.kind),
            "chain": list(self.chain),
            "site": self.site,
        }

    @classmethod
    def of_event(cls, event: Mapping[str, Any]) -> Leak:
        """What `as_event` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        shape = event["shape"]
        return cls(
            int(event["bytes"]),
            None if shape is None else tuple(int(size) for size in shape),
            event["dtype"],
            str(event["device"]),
            Hold(event["hold"]),
            tuple(str(link) for link in event["chain"]),
            event.get("site"),
        )
