"""How a virtual card is described: ``virtual:6GiB,allocator=native`` or a card's name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tightfit.allocators import ASYNC_GRAIN, KINDS
from tightfit.card.known import is_known, known_card, near_names
from tightfit.errors import UsageError
from tightfit.units import parse_bytes, parse_reserve

_MANY = re.compile(r"(\d+)x(.+)", re.IGNORECASE)


@dataclass(frozen=True)
class VirtualSpec:
    """A virtual card on paper; sizes in bytes.

    Attributes:
        name: as the user wrote it.
        total: what the card has.
        allocator: one of `allocators.KINDS`.
        context: what the device context takes off the total.
        others: what other programs hold from the start.
        grain: the step of the ``async`` allocator.
        bf16: whether the card computes in bfloat16.
        link: bytes a second from the host; None is what the table says, if it has the card.
        peer: bytes a second from another virtual card; None is not known.
    """

    name: str
    total: int
    allocator: str = "exact"
    context: int = 0
    others: int = 0
    grain: int = ASYNC_GRAIN
    bf16: bool = True
    link: int | None = None
    peer: int | None = None


_KEYS = (
    "allocator=exact|native|async|expandable, context=SIZE, others=SIZE, grain=SIZE, bf16=no, "
    "link=SIZE or peer=SIZE (bytes a second)"
)


def parse_virtual(text: str) -> tuple[VirtualSpec, ...]:
    """The cards that ``virtual:…`` names (the part after the colon).

    Raises `UsageError` naming the legal forms.
    """
    head, *options = text.split(",")
    many = _MANY.fullmatch(head.strip())
    count = int(many[1]) if many and not is_known(head) else 1
    body = many[2] if many and not is_known(head) else head.strip()
    if not 1 <= count <= 16:
        raise UsageError(f"card `virtual:{text}` asks for {count} cards: 1 to 16 can be opened.")
    if not is_known(body) and not body.lstrip(".")[:1].isdigit():
        raise UsageError(
            f"card `virtual:{text}` is unknown: write virtual:SIZE such as virtual:6GiB, or "
            f"virtual:NAME such as virtual:gtx-1660-super. {near_names(body)}"
        )
    spec = _on_paper(f"virtual:{text}", body)
    for option in options:
        spec = _with_option(spec, option, text)
    if spec.context + spec.others >= spec.total:
        raise UsageError(f"card `virtual:{text}` has nothing left after context and others.")
    return (spec,) * count


def _on_paper(name: str, body: str) -> VirtualSpec:
    if not is_known(body):
        return VirtualSpec(name, parse_bytes(body, name="card"))
    card = known_card(body)
    return VirtualSpec(name, card.total, "native", card.context, bf16=card.bf16)


def _with_option(spec: VirtualSpec, option: str, text: str) -> VirtualSpec:
    key, _, value = (part.strip().lower() for part in option.partition("="))
    if key == "allocator" and value in KINDS:
        return replace(spec, allocator=value)
    if key == "grain":
        return replace(spec, grain=parse_bytes(value, name="grain"))
    if key == "context":
        return replace(spec, context=parse_reserve(value, name="context"))
    if key == "others":
        return replace(spec, others=parse_reserve(value, name="others"))
    if key == "link":
        return replace(spec, link=parse_bytes(value, name="link"))
    if key == "peer":
        return replace(spec, peer=parse_bytes(value, name="peer"))
    if key == "bf16" and value in ("yes", "no"):
        return replace(spec, bf16=value == "yes")
    raise UsageError(f"card `virtual:{text}` has an unknown option `{option}`: use {_KEYS}.")
