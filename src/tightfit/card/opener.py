"""From a name to a card."""

from __future__ import annotations

import re

import torch

from tightfit.card.base import Card
from tightfit.card.cuda import CudaCard
from tightfit.card.host import HostCard
from tightfit.card.virtual.card import VirtualCard
from tightfit.card.virtual.spec import parse_virtual
from tightfit.errors import UsageError

_CUDA = re.compile(r"cuda(?::(\d+))?")
_BETWEEN = re.compile(r",(?=\s*(?:cuda|virtual:|cpu))")
"""Virtual cards have commas of their own."""


def open_cards(name: str | None = None) -> tuple[Card, ...]:
    """Open the cards that `name` says: ``cuda:0``, ``cpu``, ``virtual:6GiB``, ``virtual:2x4GiB``.

    Or several, as in ``cuda:0,cuda:1``. None is ``cuda:0`` where there is one, else ``cpu``. Each
    opening of a virtual card is a new card. Raises `UsageError` for a name that is no card, and for
    a card that is named twice.
    """
    if name is None:
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    found = tuple(card for text in _BETWEEN.split(name) for card in _open(text.strip(), name))
    if len({card.device for card in found}) < len(found):
        raise UsageError(f"card `{name}` names one card twice: once is enough.")
    return found


def _open(text: str, name: str) -> tuple[Card, ...]:
    if text == "cpu":
        return (HostCard(),)
    kind, _, rest = text.partition(":")
    if kind == "virtual" and rest:
        return tuple(VirtualCard(spec) for spec in parse_virtual(rest))
    match = _CUDA.fullmatch(text)
    if match:
        return (CudaCard(int(match[1] or 0)),)
    raise UsageError(
        f"card `{name}` is unknown: use cuda:0, cpu, virtual:SIZE such as virtual:6GiB, or "
        "virtual:NAME such as virtual:gtx-1660-super."
    )


def open_card(name: str | None = None) -> Card:
    """Open exactly one card; see `open_cards`."""
    cards = open_cards(name)
    if len(cards) != 1:
        raise UsageError(f"card `{name}` names {len(cards)} cards, and one is needed here.")
    return cards[0]
