"""How much of the room strips are laid out for."""

from __future__ import annotations

from tightfit.plan.strips.laying import Laying
from tightfit.plan.strips.layout import Layout

STRIPS = "strips"
"""As reports and plans call them."""
SHARES = {0.92: STRIPS, 0.7: "smaller strips", 0.5: "smallest strips"}
"""Of the room, one try each: what a plan does not see takes the rest."""
MOST = 0.92
ALONE = f"{STRIPS}, idle models evicted"
_DIGITS = 8
"""Of a room in binary: a job that is done again finds its layout though a page came or went."""
_ON_HOST = "{}, input on the host"


def name_of(share: float, *, on_card: bool) -> str:
    """The name of that try."""
    return SHARES[share] if on_card else _ON_HOST.format(SHARES[share])


def laid(
    laying: Laying, room: int, *, given: int, share: float = MOST, on_card: bool = True
) -> Layout | None:
    """The layout for a `share` of `room` bytes, where `given` bytes of input are still to come.

    `on_card` says whether the input goes there; else it stays on the host.
    """
    room = int(max(0, room - (given if on_card else 0)) * share)
    step = 1 << max(0, room.bit_length() - _DIGITS)
    return laying.within(room // step * step, given_on_card=on_card)


def taken(card_bytes: int, *, given: int, share: float = MOST, on_card: bool = True) -> int:
    """The room that a layout of `card_bytes` asks for."""
    return int(card_bytes / share) + (given if on_card else 0)
