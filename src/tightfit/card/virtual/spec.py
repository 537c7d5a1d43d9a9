"""How a virtual card is described: ``virtual:6GiB,allocator=native`` or a card's name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tightfit.allocators import KINDS
from tightfit.errors import UsageError
from tightfit.units import GIB, MIB, parse_bytes, parse_reserve

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
    """

    name: str
    total: int
    allocator: str = "exact"
    context: int = 0
    others: int = 0
    grain: int = 32 * MIB
    bf16: bool = True


_NAMED = {
    "gtx-1650": VirtualSpec("", 4 * GIB, "native", 300 * MIB, bf16=False),
    "gtx-1660-super": VirtualSpec("", 6 * GIB, "native", 300 * MIB, bf16=False),
    "rtx-2060": VirtualSpec("", 6 * GIB, "native", 320 * MIB, bf16=False),
    "rtx-3060": VirtualSpec("", 12 * GIB, "native", 400 * MIB),
    "rtx-3070": VirtualSpec("", 8 * GIB, "native", 400 * MIB),
    "rtx-4060": VirtualSpec("", 8 * GIB, "native", 400 * MIB),
    "rtx-4070": VirtualSpec("", 12 * GIB, "native", 400 * MIB),
    "rtx-4080": VirtualSpec("", 16 * GIB, "native", 420 * MIB),
    "rtx-4090": VirtualSpec("", 24 * GIB, "native", 450 * MIB),
}
_KEYS = "allocator=exact|native|async|expandable, context=SIZE, others=SIZE, grain=SIZE, bf16=no"


def parse_virtual(text: str) -> tuple[VirtualSpec, ...]:
    """The cards that ``virtual:…`` names (the part after the colon).

    Raises `UsageError` naming the legal forms.
    """
    head, *options = text.split(",")
    many = _MANY.fullmatch(head.strip())
    count = int(many[1]) if many and not _is_named(head) else 1
    body = many[2] if many and not _is_named(head) else head.strip()
    if not 1 <= count <= 16:
        raise UsageError(f"card `virtual:{text}` asks for {count} cards: 1 to 16 can be opened.")
    named = _NAMED.get(body.lower())
    if named is None and not body.lstrip(".")[:1].isdigit():
        raise UsageError(
            f"card `virtual:{text}` is unknown: write virtual:SIZE such as virtual:6GiB, or one of "
            f"{', '.join(_NAMED)}."
        )
    name = f"virtual:{text}"
    spec = replace(named, name=name) if named else VirtualSpec(name, parse_bytes(body, name="card"))
    for option in options:
        spec = _with_option(spec, option, text)
    if spec.context + spec.others >= spec.total:
        raise UsageError(f"card `virtual:{text}` has nothing left after context and others.")
    return (spec,) * count


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
    if key == "bf16" and value in ("yes", "no"):
        return replace(spec, bf16=value == "yes")
    raise UsageError(f"card `virtual:{text}` has an unknown option `{option}`: use {_KEYS}.")


def _is_named(head: str) -> bool:
    return head.strip().lower() in _NAMED
