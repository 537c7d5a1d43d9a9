"""A copy of a lane that has not arrived yet, and poison for what must not be used."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch.multiprocessing import reductions

from tightfit.card.virtual.clocks import Line
from tightfit.card.virtual.uses import Uses
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
    """

    __slots__ = ("_checksum", "_layout", "_source", "_target", "lane", "past", "tick", "uses")

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
        self._target = target
        self._source = _weakly(source.untyped_storage())
        self._layout = (int(source.storage_offset()), source.shape, source.stride())
        self._checksum = _checksum(source)

    def arrive(self) -> str | None:
        """Carry it out; what hindered it, or None."""
        find: Any = torch.UntypedStorage._new_with_weak_ptr
        storage = find(self._source.cdata)
        size = format_bytes(self._target.nbytes)
        if storage is None:
            return f"the source of a copy of {size} was freed before the copy was done"
        source = _over(storage, self._target.dtype, *self._layout)
        if _checksum(source) != self._checksum:
            return f"the source of a copy of {size} was written to before the copy was done"
        self._target.copy_(source)
        return None


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
