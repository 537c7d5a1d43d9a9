"""Masters in fewer bytes: weights that move as one, packed once, and unpacked for each use."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence

import torch

from tightfit.card.base import Card
from tightfit.place.packing.packed import Packed, Span, pack
from tightfit.place.streaming.arena import Arena
from tightfit.place.streaming.layout import Layout
from tightfit.place.streaming.memory import mapping

_TIMES = 10
"""Of the bytes that are packed, what packing them takes on a card at most, with room to spare."""
_LEAST_ROOM = 256 << 20
_SURE = (7, 10)
"""Of what is packed, at least so much is stored: the codec takes 12 bits of 16, or leaves them."""
_on_card = threading.Semaphore(2)
"""One comes or goes while another is packed; more would only take more of the card."""


class PackedArena(Arena):
    """Bytes that `packed` tells how to read; the tensors that they were made of stay as they are.

    Attributes:
        layout: where each tensor lies when it is unpacked.
        views: none.
    """

    def __init__(
        self,
        layout: Layout,
        packed: Packed,
        parts: Sequence[torch.Tensor],
        *,
        memory: torch.Tensor | None = None,
    ) -> None:
        """`parts` as `tightfit.place.packing.packed.pack` gave them, on any device.

        They are written to the first bytes of `memory`, if that is there for them and suffices.
        """
        self.layout = layout
        self.packed = packed
        self.views = ()
        if memory is None or memory.nbytes < packed.stored:  # what does not shrink takes gaps
            memory = mapping(packed.stored)
        self.whole = self._buffer = memory[: packed.stored]
        self.pinned = False
        self.at_once = True
        for stretch, part in zip(packed.stretches, parts, strict=True):
            self._buffer[stretch.at : stretch.at + stretch.stored].copy_(part)


class Unpacker:
    """Gives tensors of packed masters on the host, one by one; the latest master stays unpacked."""

    def __init__(self) -> None:
        self._last: tuple[PackedArena, tuple[torch.Tensor, ...]] | None = None

    def tensor(self, arena: PackedArena, at: int) -> torch.Tensor:
        """The tensor number `at` of `arena`."""
        if self._last is None or self._last[0] is not arena:
            self._last = None
            assert arena.packed is not None
            with torch.inference_mode(False), torch.no_grad():
                used = mapping(arena.layout.bytes)
                arena.packed.unpacking(arena.buffer, used)()
                self._last = (arena, arena.layout.views(used))
        return self._last[1][at]

    def forget(self) -> None:
        """Let the latest go."""
        self._last = None


def packed_arena(card: Card, layout: Layout, tensors: Sequence[torch.Tensor]) -> PackedArena:
    """Pack `tensors`, for which `layout` was made, by the card where it has room for that.

    What is packed comes back once, and is what a master holds. It may be called by several threads
    at once.
    """
    if card.kind != "cuda":
        return _packed_on(torch.device("cpu"), layout, tensors)
    # A driver that copies to pages that were never touched takes them one by one, and all others
    # wait meanwhile; threads take them side by side. What is not written to takes no memory.
    memory = mapping(layout.bytes)
    memory[: layout.bytes * _SURE[0] // _SURE[1] : mmap.PAGESIZE].zero_()
    with _on_card:
        if _has_room(card, layout.bytes):
            return _packed_on(card.device, layout, tensors, memory=memory)
    return _packed_on(torch.device("cpu"), layout, tensors, memory=memory)


def _packed_on(
    device: torch.device,
    layout: Layout,
    tensors: Sequence[torch.Tensor],
    *,
    memory: torch.Tensor | None = None,
) -> PackedArena:
    with torch.no_grad():
        used = torch.zeros(layout.bytes, dtype=torch.uint8, device=device)
        for view, tensor in zip(layout.views(used), tensors, strict=True):
            view.copy_(tensor)
        packed, parts = pack(used, spans_of(layout))
        return PackedArena(layout, packed, parts, memory=memory)


def spans_of(layout: Layout) -> list[Span]:
    """All bytes of a layout, each tensor with the gap behind it."""
    starts = [place.start for place in layout.places]
    ends = [*starts[1:], layout.bytes]
    return [
        (start, end, place.dtype)
        for start, end, place in zip(starts, ends, layout.places, strict=True)
    ]


def _has_room(card: Card, size: int) -> bool:
    reading = card.read()
    takeable = reading.takeable
    return takeable is not None and takeable > max(_LEAST_ROOM, _TIMES * size)
