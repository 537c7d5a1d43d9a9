"""From what was asked for to one name for each card: what an actor opens."""

from __future__ import annotations

import re

from tightfit.card import open_cards
from tightfit.errors import UsageError

_BETWEEN = re.compile(r",(?=\s*(?:cuda|virtual:|cpu))")
"""Virtual cards have commas of their own."""
_MANY = re.compile(r"virtual:(\d+)x(.+)", re.IGNORECASE)
_CUDA = re.compile(r"cuda(?::(\d+))?")


def card_names(asked: str | None, *, count: int) -> tuple[str, ...]:
    """One name a card: ``cuda:0,cuda:1`` are two, ``virtual:2x64MiB`` are ``virtual:64MiB`` twice.

    `asked` None is every CUDA card, of which there are `count`; without any, the CPU. Raises
    `UsageError` for a name that is no card here, and for a CUDA card that is named twice. No
    context is made on a CUDA card for it.
    """
    if asked is None:
        return tuple(f"cuda:{index}" for index in range(count)) or ("cpu",)
    names = [name for text in _BETWEEN.split(asked) for name in _one(text.strip(), count)]
    real = [name for name in names if name.startswith("cuda")]
    if len(set(real)) < len(real):
        raise UsageError(f"card `{asked}` names one card twice: once is enough.")
    return tuple(names)


def _one(name: str, count: int) -> list[str]:
    cuda = _CUDA.fullmatch(name)
    if cuda is not None:
        index = int(cuda[1] or 0)
        if index >= count:
            have = "none" if not count else f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0"
            raise UsageError(f"card `{name}` does not exist: there is {have} here.")
        return [f"cuda:{index}"]
    several = len(open_cards(name))
    many = _MANY.fullmatch(name)
    return [name] if many is None or several == 1 else [f"virtual:{many[2]}"] * several
