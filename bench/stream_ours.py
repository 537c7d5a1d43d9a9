"""tightfit on a live network: how it is asked, and where its figures are read. Nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

import tightfit
from tightfit.card import Card
from tightfit.place.streaming.streamed import Streaming


@dataclass(frozen=True)
class Seen:
    """What a session did so far; sizes in bytes, None is not told.

    Attributes:
        copied: to the card, since it began.
        resident, ring: on the card.
        pieces: that are streamed.
        pinned_planned, pinned: of host memory held in place.
        predicted, predicted_reserved: peaks of the card.
        stall: seconds that compute waited for copies in the last step.
        packed: pieces that are stored packed.
        unpacking: seconds that unpacking them once takes, by the rate of this card.
        placing: seconds that weights were packed, pinned and moved, in all.
        words: what a reader should know.
    """

    copied: int | None = None
    resident: int | None = None
    ring: int | None = None
    pieces: int | None = None
    pinned_planned: int | None = None
    pinned: int | None = None
    predicted: int | None = None
    predicted_reserved: int | None = None
    stall: float | None = None
    packed: int | None = None
    unpacking: float | None = None
    placing: float | None = None
    words: str = ""


@contextmanager
def ours(
    module: nn.Module,
    card: Card,
    example: dict[str, Any],
    *,
    pack: str = "off",
    traces: bool = False,
) -> Iterator[Callable[[], Seen]]:
    """While inside, `module` (on the host) runs on `card`; what is given tells what was seen.

    Without a budget: all that is free on the card is its room. `example` is what a step is given;
    `pack` and `traces` as `tightfit.fit` has them.
    """
    tightfit.fit(module, card=card, example=example, pack=pack, traces=traces)
    try:
        yield lambda: _seen(tightfit.fitted(module))
    finally:
        tightfit.unfit(module)


def _seen(fitted: Any) -> Seen:
    """The figures of `tightfit.fitted(module)`."""
    plan, changes = fitted.plan, fitted.changes
    words = [f"placed {len(changes)} times", *(f"{each.call}: {each.why}" for each in changes[1:])]
    words += fitted.notes
    words += [f"{len(fitted.attempts)} tries after running out"] if fitted.attempts else []
    return Seen(
        **_of(fitted.session),
        pinned_planned=None if plan.host is None else plan.host.pinned_real,
        predicted=plan.peak_allocated,
        predicted_reserved=plan.peak_reserved,
        stall=_stall(fitted),
        unpacking=_unpacking(fitted),
        placing=sum(change.seconds for change in changes),
        words="; ".join(words),
    )


def _stall(fitted: Any) -> float | None:
    """Of the last step, by the session's trace, where it keeps one."""
    steps = getattr(fitted, "steps", None) or getattr(fitted.session, "steps", None)
    stall: float | None = steps[-1].stall_seconds if steps else None
    return stall


def _unpacking(fitted: Any) -> float | None:
    """Seconds of one step, at the rate that was measured when it was fitted."""
    size = sum(group.layout.bytes for group in fitted.session.groups if group.packed)
    rate: float | None = fitted._kept.terms.supply.unpack.per_second
    if not size:
        return 0.0
    return size / rate if rate else None


def _of(session: Streaming) -> dict[str, Any]:
    return {
        "copied": session.copies.bytes,
        "resident": session.resident_bytes,
        "ring": session.ring_bytes,
        "pieces": sum(not group.stays for group in session.groups),
        "pinned": session.pinned_bytes,
        "packed": sum(group.packed for group in session.groups),
    }
