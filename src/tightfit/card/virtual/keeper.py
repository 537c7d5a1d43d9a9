"""Who keeps the books of a virtual card, and one storage on those books."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from tightfit.card.virtual.traffic import Traffic
    from tightfit.card.virtual.uses import Uses

DEVICE_TYPE = "vcard"


class Keeper(Protocol):
    """Who keeps the books for a device index."""

    index: int
    traffic: Traffic

    def charge(self, size: int, operator: str) -> Any:
        """Allocate `size` bytes; the answer is handed back to `discharge`."""

    def discharge(self, block: Any) -> None:
        """Free what `charge` gave."""

    def workspace(self, operator: str, size: int) -> tuple[Any, bool]:
        """Room that an operator needs while it runs, and whether its algorithm had to change."""

    def computes(self, dtype: torch.dtype) -> None:
        """Raise if the card has no such dtype."""

    def ceiling(self) -> int | None:
        """Outputs with more elements come back as zeros."""

    def settle(self) -> None:
        """Raise what was kept back: called where a real device would synchronise."""


keepers: weakref.WeakValueDictionary[int, Keeper] = weakref.WeakValueDictionary()
"""Open cards by device index."""


class Charge:
    """One storage on the books; freed when the last tensor that shares it is gone."""

    __slots__ = ("__weakref__", "block", "keeper", "key", "size", "storage", "uses")

    def __init__(self, keeper: Keeper, block: Any, storage: torch.UntypedStorage) -> None:
        self.keeper = keeper
        self.block = block
        self.storage = storage  # keeps the address from being reused while the books name it
        self.key = storage._cdata
        self.size = storage.nbytes()
        self.uses: Uses | None = None
        charges[self.key] = weakref.ref(self)

    def __del__(self) -> None:
        known = charges.get(self.key)
        if known is not None and known() in (None, self):
            charges.pop(self.key, None)
        if self.uses is not None:
            self.keeper.traffic.freed(self)
        self.keeper.discharge(self.block)


charges: dict[int, weakref.ref[Charge]] = {}
"""Storages on the books, by address."""


def keeper_at(index: int | None) -> Keeper:
    """The open card with this device index. Raises `RuntimeError` if there is none."""
    at = min(keepers.keys(), default=0) if index is None else index
    keeper = keepers.get(at)
    if keeper is None:
        raise RuntimeError(f"no virtual card is open as {DEVICE_TYPE}:{at}")
    return keeper
