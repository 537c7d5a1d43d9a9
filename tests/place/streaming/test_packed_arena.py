"""Packed masters, and the memory that they are written to."""

from __future__ import annotations

import pytest
import torch

from tightfit.place.packing.packed import pack
from tightfit.place.streaming.layout import Layout
from tightfit.place.streaming.memory import mapping
from tightfit.place.streaming.packed_arena import PackedArena, Unpacker, spans_of

SHAPES = ((3, 8192, 16), (64,), (8192, 9))


def tensors(*, shrink: bool) -> list[torch.Tensor]:
    """Of which the large ones shrink, or none does."""
    made = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in SHAPES]
    if shrink:
        return [each.to(torch.bfloat16) for each in made]
    bits = [torch.randint(-(2**15), 2**15, shape, dtype=torch.int16) for shape in SHAPES]
    return [each.view(torch.bfloat16) for each in bits]


@pytest.mark.parametrize("shrink", [True, False])
@pytest.mark.parametrize("size", [None, "as unpacked", "too little"])
def test_what_is_packed_comes_back_wherever_it_was_written(shrink: bool, size: str | None) -> None:
    """To memory of its own, or to what was taken for it before anybody knew how much it takes."""
    given = tensors(shrink=shrink)
    layout = Layout.of(given)
    used = torch.zeros(layout.bytes, dtype=torch.uint8)
    for view, tensor in zip(layout.views(used), given, strict=True):
        view.copy_(tensor)
    packed, parts = pack(used, spans_of(layout))
    memory = None if size is None else mapping(layout.bytes if size == "as unpacked" else 4096)
    arena = PackedArena(layout, packed, parts, memory=memory)
    assert arena.bytes == arena.buffer.nbytes == packed.stored
    assert packed.shrinks == shrink
    if memory is not None and packed.stored <= memory.nbytes:
        assert arena.buffer.data_ptr() == memory.data_ptr()
    unpacker = Unpacker()
    for at, tensor in enumerate(given):
        assert torch.equal(unpacker.tensor(arena, at).view(torch.int16), tensor.view(torch.int16))
