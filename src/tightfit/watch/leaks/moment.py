"""What is alive at one moment, remembered without keeping any of it alive."""

from __future__ import annotations

import gc
import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from tightfit.allocators import ALIGNMENT, round_up
from tightfit.card import Card, Reading, open_card
from tightfit.card.blocks import Block, blocks_of
from tightfit.card.virtual.keeper import DEVICE_TYPE, charges, keepers
from tightfit.card.virtual.tensor import VirtualTensor
from tightfit.watch.leaks.graphs import kinds_of, of_kinds
from tightfit.weigh.packed import data_parts

_cuda: Any = torch.cuda
_weak: Any = StorageWeakRef
_PLAIN = (torch.Tensor, nn.Parameter)


@dataclass(frozen=True)
class Scope:
    """Where to look.

    Attributes:
        cards: these alone; empty for every virtual card that is open and every CUDA device that
            this process uses.
        host: whether tensors on the host count too.
    """

    cards: tuple[Card, ...] = ()
    host: bool = False

    @property
    def wanted(self) -> tuple[Card, ...]:
        """The cards, as of now."""
        return self.cards or tuple(_in_use())

    def __contains__(self, device: torch.device) -> bool:
        if device.type == "cpu":
            return self.host or any(card.kind == "cpu" for card in self.cards)
        if not self.cards:
            return device.type in ("cuda", DEVICE_TYPE)
        return any(card.device == device for card in self.cards)


@dataclass(eq=False)
class Stored:
    """A storage that is alive, and what is seen of it.

    Attributes:
        key: its address.
        size: in bytes.
        charged: bytes that the books of its device have for it.
        device: where it is.
        weak: tells whether it still is; keeps the address from being used again.
        objects: tensors on it, bare storages, or what a card's books name.
        address: of its bytes, where a real device has them; 0 elsewhere.
    """

    key: int
    size: int
    charged: int
    device: torch.device
    weak: Any
    objects: list[Any] = field(default_factory=list)
    address: int = 0


@dataclass(frozen=True, eq=False)
class Moment:
    """What was alive at one moment; nothing is kept alive.

    Attributes:
        scope: where was looked.
        storages: by address; each entry keeps the address from being used again, not the bytes.
        modules: that were alive, by id.
        readings: of the cards, by device.
        unexplained: bytes that the books of a device have and no tensor does, by device.
        frozen: objects that the collector was told to pass over; they cannot be listed.
        blocks: addresses of what an allocator handed out and no tensor has, by device, as far as
            allocators tell.
    """

    scope: Scope
    storages: dict[int, Any]
    modules: dict[int, weakref.ref[nn.Module]]
    readings: dict[str, Reading]
    unexplained: dict[str, int]
    frozen: int
    blocks: dict[str, frozenset[int]]

    def had(self, module: nn.Module) -> bool:
        """Whether this module was alive then, as far as it could be listed."""
        known = self.modules.get(id(module))
        return known is not None and known() is module


def look(scope: Scope) -> Moment:
    """Look now. A tensor that many share is one storage; its bytes count once."""
    everything = gc.get_objects()
    stored = alive(scope, everything)
    readings, unexplained = read_cards(scope, stored.values())
    modules = {id(each): weakref.ref(each) for each in of_kinds(everything, kinds_of(nn.Module))}
    weak = {key: each.weak for key, each in stored.items()}
    blocks = {
        device: frozenset(block.address for block in left)
        for device, left in unexplained_blocks(scope, stored.values()).items()
    }
    return Moment(scope, weak, modules, readings, unexplained, gc.get_freeze_count(), blocks)


def alive(scope: Scope, everything: Iterable[Any]) -> dict[int, Stored]:
    """The storages in scope by address, with the objects on them that are in `everything`."""
    found: dict[int, Stored] = {}
    kinds = kinds_of(torch.Tensor) | {torch.UntypedStorage}
    with torch._C.DisableTorchFunctionSubclass():
        for each in of_kinds(everything, kinds):
            if issubclass(type(each), torch.Tensor):
                for device, storage in storages_of(each):
                    _note(found, scope, device, storage, each)
            else:
                _note(found, scope, each.device, each, each)
    for stored in _charged(scope):
        found.setdefault(stored.key, stored)
    return found


def read_cards(scope: Scope, stored: Iterable[Stored]) -> tuple[dict[str, Reading], dict[str, int]]:
    """Readings by device, and how many allocated bytes belong to no storage."""
    sums: dict[torch.device, int] = {}
    for each in stored:
        sums[each.device] = sums.get(each.device, 0) + each.charged
    readings = {str(card.device): card.read() for card in scope.wanted}
    unexplained = {
        name: reading.allocated - sums.get(torch.device(name), 0)
        for name, reading in readings.items()
        if reading.allocated is not None
    }
    return readings, unexplained


def unexplained_blocks(scope: Scope, stored: Iterable[Stored]) -> dict[str, list[Block]]:
    """What allocators handed out and no storage lies in, by device, as far as they tell."""
    found: dict[str, list[Block]] = {}
    places: dict[torch.device, list[int]] = {}
    for each in stored:
        places.setdefault(each.device, []).append(each.address)
    for card in scope.wanted:
        blocks = blocks_of(card)
        if blocks is None:
            continue
        starts = sorted(places.get(card.device, ()))
        found[str(card.device)] = [
            block
            for block in blocks
            if bisect_left(starts, block.address)
            == bisect_left(starts, block.address + block.bytes)
        ]
    return found


def storages_of(tensor: Any) -> Iterator[tuple[torch.device, torch.UntypedStorage]]:
    """The storages behind a tensor; what a virtual card charges for is its payload's."""
    device = tensor.device
    if device.type == "meta":
        return
    if type(tensor) is VirtualTensor:
        parts = [tensor.payload]
    elif type(tensor) in _PLAIN and tensor.layout is torch.strided:
        parts = [tensor]
    else:
        parts = data_parts(tensor)
    for part in parts:
        where = device if isinstance(tensor, VirtualTensor) else part.device
        # A subclass may have no storage of its own, or not show it.
        if part.layout is torch.strided and not isinstance(part, VirtualTensor):
            try:
                yield where, part.untyped_storage()
            except (NotImplementedError, RuntimeError):
                continue


def _in_use() -> Iterator[Card]:
    for _, keeper in sorted(keepers.items()):
        if isinstance(keeper, Card):
            yield keeper
    if torch.cuda.is_available() and _cuda.is_initialized():
        yield from _cuda_cards()


@cache
def _cuda_cards() -> tuple[Card, ...]:
    """Opened once: to open one computes on it."""
    return tuple(open_card(f"cuda:{index}") for index in range(torch.cuda.device_count()))


def _note(
    found: dict[int, Stored], scope: Scope, device: torch.device, storage: Any, holder: Any
) -> None:
    key, size = storage._cdata, storage.nbytes()
    if device not in scope or size == 0 or (device.type == "cpu" and key in charges):
        return
    known = found.get(key)
    if known is None:
        charged = _charge_of(key, size) if device.type != "cpu" else size
        address = storage.data_ptr() if device.type == "cuda" else 0
        known = found[key] = Stored(key, size, charged, device, _weak(storage), address=address)
    known.objects.append(holder)


def _charge_of(key: int, size: int) -> int:
    """What the books have for it: an allocator rounds up."""
    known = charges.get(key)
    charge = known() if known is not None else None
    return round_up(size, ALIGNMENT) if charge is None else int(charge.block.size)


def _charged(scope: Scope) -> Iterator[Stored]:
    """Storages on the books of virtual cards, also of tensors that cannot be listed."""
    for known in list(charges.values()):
        charge = known()
        if charge is None:
            continue
        device = torch.device(DEVICE_TYPE, charge.keeper.index)
        if device in scope and charge.size:
            weak = _weak(charge.storage)
            yield Stored(charge.key, charge.size, charge.block.size, device, weak, [charge])
