"""How a network is run in strips: how high they are, and what is kept on the card or the host."""

from __future__ import annotations

from dataclasses import dataclass, field

from tightfit.plan.strips.spans import Strip
from tightfit.plan.strips.stages import Stage

SLOTS = 2
"""Buffers on the card for what is on its way, up and down each: one is filled, one is used."""


@dataclass(frozen=True)
class LaidStage:
    """A stage with its strips.

    Attributes:
        stage: itself.
        strips: in order; empty for one that is not run in strips.
        load, store: bytes of one buffer for copies; 0 where nothing is copied.
    """

    stage: Stage
    strips: tuple[Strip, ...]
    load: int = 0
    store: int = 0


@dataclass(frozen=True)
class Layout:
    """How a network is run in strips.

    Attributes:
        stages: in order.
        on_card: value → how many of its first strips stay on the card; the others lie on the host.
        offsets: (value, strip) → where it lies in the memory for strips, on the card or the host.
        dead: (stage, strip) → kept strips, as (value, strip), that nobody reads after it.
        host_bytes: of the memory for strips there.
        card_arena: of that on the card; `passing` of the buffers for copies beside it.
        card_bytes: the most that is taken of the card, weights and input apart.
        always: of it, at most, what lies there beside all that and is not of a strip.
        result_on_card: the result is put together there.
        up, down: bytes copied to the card, and from it.
        flops: operations, and `again` those among them that are done more than once.
        seconds: predicted.
        counts: value → into how many strips it was cut when it was made.
        last: value → the last stage that reads it.
    """

    stages: tuple[LaidStage, ...]
    on_card: dict[int, int]
    offsets: dict[tuple[int, int], int]
    dead: dict[tuple[int, int], tuple[tuple[int, int], ...]]
    host_bytes: int
    card_arena: int
    passing: int
    card_bytes: int
    always: int
    result_on_card: bool
    up: int
    down: int
    flops: float
    again: float
    seconds: float
    counts: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    @property
    def most_strips(self) -> int:
        """Of the stage that is cut most."""
        return max((len(each.strips) for each in self.stages), default=1)
