"""Copies of lanes that have not arrived yet, and poison for what must not be used."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch.multiprocessing import reductions

from tightfit.card.virtual.clocks import Line
from tightfit.card.virtual.uses import Uses, place_of
from tightfit.units import format_bytes

_weakly: Any = reductions.StorageWeakRef
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Copy:
    """A copy that has not arrived; it keeps its source alive no more than a device does.

    Attributes:
        lane: the number of its queue.
        tick: its number in that queue.
        past: what is done once it has arrived.
        uses: of the storage it goes to.
        place: of the host memory that it comes from.
    """

    __slots__ = (
        "_checksum",
        "_layout",
        "_source",
        "_target",
        "lane",
        "past",
        "place",
        "tick",
        "uses",
    )

    def __init__(
        self,
        line: Line,
        uses: Uses,
        *,
        target: torch.Tensor,
        source: torch.Tensor,
    ) -> None:
        self.lane = line.number
        self.past = line.clock.copy()
        self.tick = self.past[self.lane]
        self.uses = uses
        self.place = place_of(source)
        self._target: torch.Tensor | None = target
        self._source = _weakly(source.untyped_storage())
        self._layout = (int(source.storage_offset()), source.shape, source.stride())
        self._checksum = _checksum(source)

    def arrive(self) -> str | None:
        """Carry it out; what hindered it, or None."""
        target, self._target = self._target, None
        if target is None:
            return None
        storage = _alive(self._source)
        size = format_bytes(target.nbytes)
        if storage is None:
            return f"the source of a copy of {size} was freed before the copy was done"
        source = _over(storage, target.dtype, *self._layout)
        if _checksum(source) != self._checksum:
            return f"the source of a copy of {size} was written to before the copy was done"
        target.copy_(source)
        return None

    def spoil(self) -> None:
        """A wait is missing: it never arrives."""
        self._target = None

    @property
    def gone(self) -> bool:
        """Nobody holds its source any more."""
        return bool(self._source.expired())


class Back:
    """A copy back to the host; it keeps its target alive no more than a device does.

    It takes its bytes from the card when the queues say so, and the host sees them when it waits.

    Attributes:
        lane, tick, past: as of `Copy`.
        uses: of the storage it comes from.
        place: of the host memory that it goes to.
        computed: when compute last worked out values in the storage it comes from.
        arrived: the host sees it, or will never.
    """

    __slots__ = (
        "_checksum",
        "_dtype",
        "_layout",
        "_size",
        "_source",
        "_spoilt",
        "_target",
        "_values",
        "arrived",
        "computed",
        "lane",
        "past",
        "place",
        "tick",
        "uses",
    )

    def __init__(
        self,
        line: Line,
        uses: Uses,
        *,
        target: torch.Tensor,
        source: torch.Tensor,
    ) -> None:
        """`target` is poisoned."""
        self.lane = line.number
        self.past = line.clock.copy()
        self.tick = self.past[self.lane]
        self.uses = uses
        self.place = place_of(target)
        self.computed = uses.computed
        self.arrived = False
        self._spoilt = False
        self._source: torch.Tensor | None = source
        self._values: torch.Tensor | None = None
        self._target = _weakly(target.untyped_storage())
        self._layout = (int(target.storage_offset()), target.shape, target.stride())
        self._dtype = target.dtype
        self._size = format_bytes(target.nbytes)
        poison(target)
        self._checksum = _checksum(target)

    def arrive(self) -> str | None:
        """Take the bytes from the card; nothing hinders that."""
        source, self._source = self._source, None
        if source is not None:
            self._values = source.clone()
        return None

    def show(self) -> str | None:
        """The host sees what was taken; what hindered it, or None."""
        values, self._values, self.arrived = self._values, None, True
        storage = _alive(self._target)
        if storage is None:
            return f"the target of a copy back of {self._size} was freed before the copy was done"
        target = _over(storage, self._dtype, *self._layout)
        if _checksum(target) != self._checksum:
            poison(target)
            return (
                f"the target of a copy back of {self._size} was written to before the copy was done"
            )
        if values is not None and not self._spoilt:
            target.copy_(values)
        return None

    def spoil(self) -> None:
        """A wait is missing: what the host gets of it is poison."""
        self._spoilt, self._source, self._values = True, None, None
        storage = _alive(self._target) if self.arrived else None
        if storage is not None:
            poison(_over(storage, self._dtype, *self._layout))


def _alive(storage: Any) -> torch.UntypedStorage | None:
    """What a weak reference leads to."""
    find: Any = torch.UntypedStorage._new_with_weak_ptr
    found: torch.UntypedStorage | None = find(storage.cdata)
    return found


def poison(tensor: torch.Tensor) -> None:
    """All bits of a host tensor set, which is NaN in every floating dtype; True for bool."""
    with torch.inference_mode():
        if tensor.dtype == torch.bool:
            tensor.fill_(True)
        elif tensor.is_complex():
            torch.view_as_real(tensor).fill_(torch.nan)
        else:
            tensor.view(_WHOLE[tensor.element_size()]).fill_(-1)


def poison_bytes(storage: torch.UntypedStorage) -> None:
    """All bits of a storage set."""
    size = storage.nbytes()
    poison(_over(storage, torch.uint8, 0, torch.Size((size,)), (1,)))


def _over(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: torch.Size,
    stride: tuple[int, ...],
) -> torch.Tensor:
    """A host tensor over the bytes of a storage."""
    empty: Any = torch.empty(0, dtype=dtype)
    tensor: torch.Tensor = empty.set_(storage, offset, shape, stride)
    return tensor


def _checksum(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    array: Any = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return zlib.crc32(array)
