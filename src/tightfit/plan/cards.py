"""Which networks of a pipeline lie on which card, where there are several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["denoiser", "encoder", "vae"]
_ORDER: tuple[Role, ...] = ("denoiser", "encoder", "vae")
"""Who is called in every step has the first choice; a VAE takes its own room as it comes."""


@dataclass(frozen=True)
class Part:
    """A network of a pipeline.

    Attributes:
        name: in the pipeline.
        bytes: of its weights.
        role: what it is called for.
    """

    name: str
    bytes: int
    role: Role


@dataclass(frozen=True)
class OnCards:
    """Where each part goes.

    Attributes:
        where: by name, the place of its card among those there are.
        home: the card of the largest denoiser, where the pipeline itself works.
    """

    where: Mapping[str, int]
    home: int


def on_cards(
    parts: Sequence[Part],
    rooms: Sequence[int],
    *,
    fixed: Mapping[str, int] | None = None,
    home: int | None = None,
) -> OnCards:
    """Spread `parts` over cards, so that as few as possible have to leave or stream.

    In the order of denoisers, encoders, VAEs, and the largest of each first, each goes to the card
    where most is left after those before it: what streams meanwhile has the rest for its
    activations. Of two with as much, the first.

    Args:
        parts: at least one.
        rooms: bytes that may be taken of each card.
        fixed: by name, the card of those that somebody has decided on; they count first.
        home: the card of the largest denoiser, unless that is fixed.

    Raises `ValueError` where there is no card, or `fixed` names one that is not there.
    """
    if not rooms or not parts:
        raise ValueError("there is nothing to spread, or no card for it")
    main = min(parts, key=lambda part: (_ORDER.index(part.role), -part.bytes))
    fixed = {**({} if home is None else {main.name: home}), **(fixed or {})}
    if any(not 0 <= at < len(rooms) for at in fixed.values()):
        raise ValueError(f"cards are counted from 0 to {len(rooms) - 1}")
    left = list(rooms)
    where: dict[str, int] = {}
    order = sorted(
        parts, key=lambda part: (part.name not in fixed, _ORDER.index(part.role), -part.bytes)
    )
    for part in order:
        at = fixed.get(part.name)
        if at is None:
            at = max(range(len(left)), key=lambda card: (left[card], -card))
        where[part.name] = at
        left[at] -= part.bytes
    return OnCards({part.name: where[part.name] for part in parts}, where[main.name])
