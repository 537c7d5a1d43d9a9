"""Bytes in and out: ``"7.6GiB"`` to an integer and back, shares of a total, picture sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tightfit.errors import UsageError

KIB = 2**10
MIB = 2**20
GIB = 2**30

_FACTORS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 2**40,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": 2**40,
}
_LEGAL = "write a number with B, KB, MB, GB, KiB, MiB or GiB, such as 6GiB or 512m"
_LEGAL_SHARE = f"{_LEGAL}; 80% of the card; or -1GiB to leave that much"
_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]+)", re.IGNORECASE)


def parse_bytes(text: str, *, name: str = "size") -> int:
    """Turn ``"7.6GiB"`` into bytes. Raises `UsageError` on zero, a bare number, and nonsense."""
    size = _magnitude(text.strip(), name=name, legal=_LEGAL)
    if size <= 0:
        raise UsageError(f"{name} `{text}` is zero: {_LEGAL}.")
    return size


def parse_reserve(text: str, *, name: str = "--reserve-vram") -> int:
    """Like `parse_bytes`, but ``0`` and ``0B`` are allowed."""
    if text.strip() == "0":
        return 0
    return _magnitude(text.strip(), name=name, legal=f"{_LEGAL}, or 0")


@dataclass(frozen=True)
class Share:
    """An amount of a card that may depend on the card's total.

    Exactly one of the three is set: `size` in bytes, `fraction` of the total, or `leave` bytes.
    """

    text: str
    size: int | None = None
    fraction: float | None = None
    leave: int | None = None

    def of(self, total: int, *, name: str = "--vram") -> int:
        """The amount in bytes of a card of `total` bytes. Raises `UsageError` if none is left."""
        if self.size is not None:
            return self.size
        if self.fraction is not None:
            amount = int(total * self.fraction)
        else:
            assert self.leave is not None
            amount = total - self.leave
        if amount <= 0:
            raise UsageError(
                f"{name} `{self.text}` leaves nothing: the card has {format_bytes(total)} in all."
            )
        return amount


def parse_share(text: str, *, name: str = "--vram") -> Share:
    """Parse a size, ``80%`` or ``-1GiB``."""
    stripped = text.strip()
    if stripped.endswith("%"):
        try:
            percent = float(stripped[:-1])
        except ValueError:
            percent = 0.0
        if not 0 < percent <= 100:
            raise UsageError(f"{name} `{text}` is not a share between 0 and 100%: {_LEGAL_SHARE}.")
        return Share(text, fraction=percent / 100)
    if stripped.startswith("-"):
        leave = _magnitude(stripped[1:], name=name, legal=_LEGAL_SHARE)
        if leave <= 0:
            raise UsageError(f"{name} `{text}` leaves zero bytes: {_LEGAL_SHARE}.")
        return Share(text, leave=leave)
    size = _magnitude(stripped, name=name, legal=_LEGAL_SHARE)
    if size <= 0:
        raise UsageError(f"{name} `{text}` is zero: {_LEGAL_SHARE}.")
    return Share(text, size=size)


def format_bytes(size: int) -> str:
    """A size for people: ``7.6 GiB``, ``512.0 MiB``, ``96 B``."""
    sign, magnitude = ("-", -size) if size < 0 else ("", size)
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        # 1023.96 KiB would print as 1024.0 KiB; go to the next unit a little earlier.
        if magnitude >= factor * 0.99995 and magnitude >= KIB:
            return f"{sign}{magnitude / factor:.1f} {unit}"
    return f"{sign}{magnitude} B"


def _magnitude(text: str, *, name: str, legal: str) -> int:
    match = _NUMBER.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{name} `{text}` is not a size: {legal}.")
    size = float(match[1]) * factor
    if size >= 2**62:
        raise UsageError(f"{name} `{text}` is larger than any memory: {legal}.")
    return int(size)
