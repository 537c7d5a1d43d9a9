"""Which cards of this machine have room for the prompts of a job: by plans, before any work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tightfit.api.generation.asked import Asked
from tightfit.cluster.placement import Demand, Job, Place, place
from tightfit.units import format_bytes


@dataclass(frozen=True)
class Taking:
    """The cards that take part.

    Attributes:
        cards: their names.
        notes: why others do not.
    """

    cards: tuple[str, ...]
    notes: tuple[str, ...] = ()


def cards_that_take(
    asked: Asked, lines: Sequence[str], cards: Sequence[str], memory: Mapping[str, Any]
) -> Taking:
    """Share prompts, one of each of `lines`, among `cards`, by the least that each takes there.

    The prompts of a job are alike in size, so a card takes any of them or none; a card that is not
    needed is left alone. Where nothing is known of the pipeline, all cards take part. `memory` is
    of the workplace. Raises `MemoryShortage`, with the lines, for what fits nowhere.
    """
    known = {card: _need(asked, card, memory) for card in dict.fromkeys(cards)}
    least = min((need for need, _ in filter(None, known.values())), default=0)
    places = []
    for name, card in zip(_told_apart(cards), cards, strict=True):
        need, room = known[card] or (least, least)
        places.append(Place(name, max(0, room - (need - least))))
    demand = Demand(least)
    placing = place([Job(line, demand, len(asked.seeds)) for line in lines], places)
    placing.check()
    takes = [each.room >= least for each in places]
    notes = [
        f"{each.name} takes no part: a prompt needs {format_bytes(need_room[0])} there, and it has "
        f"{format_bytes(need_room[1])}."
        for each, card, fits in zip(places, cards, takes, strict=True)
        if not fits and (need_room := known[card]) is not None
    ]
    used = [card for each, card in zip(places, cards, strict=True) if placing.queues[each.name]]
    return Taking(tuple(used), tuple(notes))


def _need(asked: Asked, card: str, memory: Mapping[str, Any]) -> tuple[int, int] | None:
    """Bytes that a prompt takes there at least, and that there are; None where no plan can be."""
    plan = asked.chosen.plan(
        asked.order,
        card=card,
        vram=memory.get("vram"),
        reserve=memory.get("reserve"),
        mode=memory.get("mode", "auto"),
        dtype=asked.dtype,
    )
    if plan is None or not plan.stages:
        return None
    need = max(min(way.least for way in stage.ways) for stage in plan.stages)
    return need, min(stage.room for stage in plan.stages)


def _told_apart(cards: Sequence[str]) -> list[str]:
    """As they are named; where several have one name, with their number."""
    counts = Counter(cards)
    return [card if counts[card] == 1 else f"{card} (card {at})" for at, card in enumerate(cards)]
