"""Which idle models make room for a declared demand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Tenant:
    """A model on a card.

    Attributes:
        name: unique on the card.
        bytes: that come free when it goes.
        last_used: larger is later; any clock or counter.
        in_use: it cannot go.
    """

    name: str
    bytes: int
    last_used: float = 0.0
    in_use: bool = False


@dataclass(frozen=True)
class Eviction:
    """Who goes.

    Attributes:
        go: names, in the order in which they go.
        freed: bytes that come free.
        short: bytes that lack even so; then nobody goes, since it would not help.
    """

    go: tuple[str, ...]
    freed: int
    short: int


def evict(need: int, room: int, tenants: Iterable[Tenant]) -> Eviction:
    """Make room for `need` bytes where `room` are free: the least recently used first.

    `need` is of the way that runs: a tiled decode declares its tile, not the whole frame. Whoever
    turns out not to be needed stays, the latest used first.
    """
    lacking = need - room
    if lacking <= 0:
        return Eviction((), 0, 0)
    idle = sorted(
        (tenant for tenant in tenants if not tenant.in_use and tenant.bytes > 0),
        key=lambda tenant: (tenant.last_used, tenant.name),
    )
    gone: list[Tenant] = []
    freed = 0
    for tenant in idle:
        if freed >= lacking:
            break
        gone.append(tenant)
        freed += tenant.bytes
    if freed < lacking:
        return Eviction((), 0, lacking - freed)
    for tenant in reversed(gone[:]):
        if freed - tenant.bytes >= lacking:
            gone.remove(tenant)
            freed -= tenant.bytes
    return Eviction(tuple(tenant.name for tenant in gone), freed, 0)
