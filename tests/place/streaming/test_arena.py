"""Host masters: several tensors in one buffer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tightfit.errors import MemoryShortage
from tightfit.place.streaming.arena import Arena
from tightfit.place.streaming.layout import ALIGNMENT, Layout
from tightfit.place.streaming.memory import mapping

DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool)
SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=5)


@given(SHAPES, st.integers(0, 4))
def test_tensors_lie_side_by_side_and_keep_their_bits(shapes: list[list[int]], kind: int) -> None:
    """Each at a multiple of the alignment, none over another, all within the buffer."""
    tensors = [
        (torch.randn(shape) * 9).to(DTYPES[(kind + at) % 5]) for at, shape in enumerate(shapes)
    ]
    layout = Layout.of(tensors)
    end = 0
    for place in layout.places:
        assert place.start % ALIGNMENT == 0
        assert end <= place.start < end + ALIGNMENT
        end = place.start + place.bytes
    assert layout.bytes == end
    arena = Arena(layout, tensors)
    assert arena.buffer.nbytes == end
    for view, tensor in zip(arena.views, tensors, strict=True):
        assert (view.shape, view.dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(view.flatten().view(torch.uint8), tensor.flatten().view(torch.uint8))


def test_the_order_of_dimensions_in_memory_is_kept() -> None:
    """Channels last and transposed stay so; gaps and repeats are left out."""
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    turned, window, row = torch.randn(4, 6).T, torch.randn(9, 9)[::2, ::3], torch.randn(1, 7)
    repeated = row.expand(5, 7)
    tensors = [image, turned, window, repeated]
    layout = Layout.of(tensors)
    assert [place.stride for place in layout.places[:2]] == [image.stride(), turned.stride()]
    assert [place.stride for place in layout.places[2:]] == [(3, 1), (7, 1)]
    assert all(
        torch.equal(view, tensor)
        for view, tensor in zip(Arena(layout, tensors).views, tensors, strict=True)
    )


def test_the_same_layout_fits_any_buffer() -> None:
    """Bytes copied as they lie give the same tensors."""
    tensors = [torch.randn(3, 3), torch.randn(5).half()]
    arena = Arena(Layout.of(tensors), tensors)
    other = torch.zeros(arena.layout.bytes + 100, dtype=torch.uint8)
    other[: arena.layout.bytes].copy_(arena.buffer)
    views = arena.layout.views(other)
    assert all(torch.equal(view, tensor) for view, tensor in zip(views, tensors, strict=True))


def test_the_memory_goes_with_the_last_view() -> None:
    """The buffer may be gone; a view of it still has its values."""
    arena = Arena(Layout.of([torch.ones(1000)]), [torch.ones(1000)])
    view = arena.views[0]
    del arena
    assert view.sum() == 1000


@pytest.mark.parametrize("tensors", [[], [torch.empty(0, 3)]])
def test_nothing_takes_nothing(tensors: list[torch.Tensor]) -> None:
    """Also as tensors without elements."""
    arena = Arena(Layout.of(tensors), tensors)
    assert arena.layout.bytes == arena.buffer.nbytes == 0
    assert [view.shape for view in arena.views] == [tensor.shape for tensor in tensors]


def test_memory_that_the_system_refuses_is_a_shortage() -> None:
    """With its size."""
    with pytest.raises(MemoryShortage, match=r"iB were refused"):
        mapping(2**63 - 1)
