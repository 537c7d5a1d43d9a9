"""What a module's tensors stand for while its weights come and go."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from tests.cases.common import virtual
from tightfit.errors import UsageError
from tightfit.place.streaming.placeholders import Placeholders
from tightfit.place.streaming.seat import Seat

DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.uint8,
    torch.bool,
)


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_a_seat_is_the_same_object_on_the_card_and_back(kind: str) -> None:
    """Its class, its flag and its bits are restored, as often as one likes."""
    card, values = virtual("1MiB"), torch.randn(4, 4)
    tensor = nn.Parameter(values.clone()) if kind == "parameter" else values.clone()
    seat = Seat(tensor, "layer.weight")
    assert not tensor.requires_grad
    seat.bring(torch.zeros(4, 4).to(card.device))
    assert seat.tensor is tensor
    assert tensor.device == card.device
    assert isinstance(tensor, nn.Parameter) == (kind == "parameter")
    assert torch.equal(tensor.cpu(), torch.zeros(4, 4))
    tensor.data = torch.ones(4, 4).to(card.device)
    assert torch.equal(tensor.cpu(), torch.ones(4, 4))
    for _ in range(2):
        seat.restore()
        assert tensor.device.type == "cpu"
        assert torch.equal(tensor, values)
        assert tensor.requires_grad == (kind == "parameter")
    assert type(tensor) is (nn.Parameter if kind == "parameter" else torch.Tensor)
    assert card.read().allocated == 0


def test_another_master_takes_the_place_of_the_first() -> None:
    """Before the card and during: what comes back is the later one."""
    card, tensor = virtual("1MiB"), nn.Parameter(torch.zeros(3))
    seat, masters = Seat(tensor, "w"), [torch.ones(3), torch.full((3,), 2.0)]
    seat.settle(masters[0])
    assert tensor.data_ptr() == masters[0].data_ptr()
    seat.bring(torch.zeros(3).to(card.device))
    seat.settle(masters[1])
    assert torch.equal(tensor.cpu(), torch.zeros(3))
    seat.restore()
    assert tensor.data_ptr() == masters[1].data_ptr()


def test_a_tensor_that_cannot_change_its_kind_is_named() -> None:
    """A weak reference would lead to another tensor; nothing has been changed."""
    card, tensor = virtual("1MiB"), nn.Parameter(torch.zeros(3))
    seat, watcher = Seat(tensor, "layer.weight"), weakref.ref(tensor)
    with pytest.raises(UsageError, match=r"`layer.weight` cannot be streamed on this card"):
        seat.bring(torch.zeros(3).to(card.device))
    seat.restore()
    assert watcher() is tensor
    assert tensor.device.type == "cpu"
    assert tensor.requires_grad


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_placeholder_has_the_shape_and_no_bytes(dtype: torch.dtype) -> None:
    """One element for each dtype; floating ones read as NaN, and none can be written to."""
    card = virtual("1MiB")
    away = Placeholders(card.device)
    large = away.like(torch.zeros(300, 400, dtype=dtype))
    small = away.like(torch.zeros(7, dtype=dtype))
    assert large.shape == (300, 400)
    assert (large.dtype, large.device) == (dtype, card.device)
    assert away.like(torch.zeros(7, dtype=dtype)) is small
    assert card.read().allocated == 512
    if dtype.is_floating_point or dtype.is_complex:
        assert large[0, :3].cpu().to(torch.complex64).isnan().all()
    with pytest.raises(RuntimeError):
        large.copy_(torch.zeros(300, 400, dtype=dtype))
