"""What stayed, and the chain of who holds it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tightfit.report.page.fields import Event, text, whole

MOST_LEAKS = 200
_PLACE = re.compile(r"\[\d+\]")


@dataclass(frozen=True)
class Leak:
    """Attributes:
    bytes: of the storage; None where not known.
    what: its shape and dtype.
    kind: what sort of holder it is; ``workspace`` for what libraries keep, which is no leak.
    site: the code that allocated it; empty where not known.
    chain: holders, the outermost first.
    moment: when it was there, in words; empty for when the work was over.
    count: how many neighbours it stands for, which the same holder has at other places.
    """

    bytes: int | None
    what: str
    kind: str
    site: str
    chain: tuple[str, ...]
    moment: str = ""
    count: int = 1


def leaks(events: Sequence[Event]) -> list[Leak]:
    """The leaks of a trace, the largest first; what one holder has in many places is one."""
    together: dict[object, list[Leak]] = {}
    for event in events:
        if event["event"] == "leak":
            leak = _leak(event)
            holders = tuple(_PLACE.sub("[…]", link) for link in leak.chain[:-1])
            alike = holders if any("[…]" in link for link in holders) else leak.chain
            together.setdefault((alike, leak.kind, leak.site, leak.moment), []).append(leak)
    return sorted(map(_one_of, together.values()), key=lambda leak: -(leak.bytes or 0))


def _one_of(many: Sequence[Leak]) -> Leak:
    """One for all of them; it is shown as the largest is."""
    most = max(many, key=lambda leak: leak.bytes or 0)
    if len(many) == 1:
        return most
    *holders, last = most.chain
    return replace(
        most,
        bytes=sum(leak.bytes or 0 for leak in many),
        chain=(*(_PLACE.sub("[…]", link) for link in holders), f"the largest: {last}"),
        count=len(many),
    )


def _leak(event: Event) -> Leak:
    shape = event.get("shape")
    sides = "x".join(map(str, shape)) if isinstance(shape, list | tuple) else text(event, "shape")
    return Leak(
        whole(event, "bytes"),
        " ".join(word for word in (sides, text(event, "dtype").removeprefix("torch.")) if word),
        text(event, "hold", "kind"),
        text(event, "site"),
        _chain(event.get("chain")),
        text(event, "moment"),
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
