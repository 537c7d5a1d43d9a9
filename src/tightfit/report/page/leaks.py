"""What stayed, and the chain of who holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tightfit.report.page.fields import Event, text, whole

MOST_LEAKS = 200


@dataclass(frozen=True)
class Leak:
    """Attributes:
    bytes: of the storage; None where not known.
    what: its shape and dtype.
    kind: what sort of holder it is; ``workspace`` for what libraries keep, which is no leak.
    site: the code that allocated it; empty where not known.
    chain: holders, the outermost first.
    """

    bytes: int | None
    what: str
    kind: str
    site: str
    chain: tuple[str, ...]


def leaks(events: Sequence[Event]) -> list[Leak]:
    """The leaks of a trace, the largest first."""
    found = [_leak(event) for event in events if event["event"] == "leak"]
    return sorted(found, key=lambda leak: -(leak.bytes or 0))


def _leak(event: Event) -> Leak:
    shape = event.get("shape")
    sides = "x".join(map(str, shape)) if isinstance(shape, list | tuple) else text(event, "shape")
    return Leak(
        whole(event, "bytes"),
        " ".join(word for word in (sides, text(event, "dtype").removeprefix("torch.")) if word),
        text(event, "hold", "kind"),
        text(event, "site"),
        _chain(event.get("chain")),
    )


def _chain(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Sequence):
        return ()
    return tuple(
        text(link, "text", "name", "what") if isinstance(link, Mapping) else str(link)
        for link in value
    )
