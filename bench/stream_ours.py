"""tightfit on a live network: how it is asked, and where its figures are read. Nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

import tightfit
from tightfit.allocators import ALIGNMENT, round_up
from tightfit.card import Card
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.plan.demand import Demand, Unit
from tightfit.plan.figure import Figure
from tightfit.plan.plan import make
from tightfit.plan.supply import Supply
from tightfit.weigh.module_blocks import blocks_of
from tightfit.weigh.order import ordered, run_order

_MOST_PINNED = 1 << 40


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
    words: str = ""


@dataclass(frozen=True)
class Given:
    """What a placement by hand is told, and `tightfit.fit` finds out.

    Attributes:
        outline: the network on the meta device.
        outlined: a step of it.
        example: what a step is given, by name.
        room: bytes that may be taken of the card.
        activations: bytes that a step takes beside weights.
        seconds: of a step with everything resident.
        link: bytes a second.
    """

    outline: nn.Module
    outlined: Callable[[], object]
    example: dict[str, Any]
    room: int
    activations: int
    seconds: float | None = None
    link: int | None = None


def fits() -> bool:
    """Whether this tightfit has `fit`."""
    return "fit" in tightfit.__all__


@contextmanager
def ours(module: nn.Module, card: Card, given: Given) -> Iterator[Callable[[], Seen]]:
    """While inside, `module` (on the host) runs on `card`; what is given tells what was seen."""
    way = _by_fit(module, card, given) if fits() else _by_hand(module, card, given)
    with way as seen:
        yield seen


@contextmanager
def _by_fit(module: nn.Module, card: Card, given: Given) -> Iterator[Callable[[], Seen]]:
    """Without `vram`: all that is free is its room."""
    door: Any = tightfit
    door.fit(module, card=card, example=given.example)
    try:
        yield lambda: _seen(door.fitted(module))
    finally:
        door.unfit(module)


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
        words="; ".join(words),
    )


def _stall(fitted: Any) -> float | None:
    """Of the last step, by the session's trace, where it keeps one."""
    steps = getattr(fitted, "steps", None) or getattr(fitted.session, "steps", None)
    stall: float | None = steps[-1].stall_seconds if steps else None
    return stall


@contextmanager
def _by_hand(module: nn.Module, card: Card, given: Given) -> Iterator[Callable[[], Seen]]:
    """As far as there is no `fit`: what it will do, with what the resident run told."""
    order = run_order(given.outline, given.outlined)
    blocks = ordered(blocks_of(module), order)
    units = []
    for block in blocks.blocks:
        parts = tuple(
            Unit(
                leaf.name or f"{block.name or 'root'} (own)",
                round_up(leaf.stored_bytes, ALIGNMENT),
            )
            for leaf in block.leaves
        )
        size = sum(part.bytes for part in parts)
        units.append(Unit(block.name or "root", size, parts=parts if len(parts) > 1 else ()))
    beside = given.activations + given.activations // 8 + given.room // 50
    demand = Demand("denoise", tuple(units), Figure(beside), seconds=given.seconds)
    plan = make([demand], Supply(card.name, given.room, given.room, allocator=card.allocator))
    residency = plan.stages[0].residency
    if residency is None:
        raise plan.shortage()
    pins = Pins.cuda(_MOST_PINNED) if card.kind == "cuda" else Pins.none()
    with streamed(module, card, residency, blocks, order=order, pins=pins) as session:
        planned = residency.streamed_bytes if pins.budget else None
        yield lambda: Seen(**_of(session), pinned_planned=planned, words="placed by hand")


def _of(session: Streaming) -> dict[str, Any]:
    return {
        "copied": session.copies.bytes,
        "resident": session.resident_bytes,
        "ring": session.ring_bytes,
        "pieces": sum(not group.stays for group in session.groups),
        "pinned": session.pinned_bytes,
    }
