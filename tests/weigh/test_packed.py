"""What a tensor is made of, and what its copy in the compute dtype takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.weigh.shells import (
    FlatShell,
    Shell,
    State,
    blocks_of_32,
    four_bit,
    four_bit_size,
    with_quant_state,
)
from tightfit.card import open_card
from tightfit.weigh.packed import converted_bytes, elements, is_packed, parts
from tightfit.weigh.tally import stored_bytes

BF16 = torch.bfloat16


def test_a_plain_tensor_is_its_own_part() -> None:
    """Parameters too."""
    for tensor in (torch.ones(3), nn.Parameter(torch.ones(3)), torch.ones(3, device="meta")):
        (part,) = parts(tensor)
        assert part is tensor
        assert not is_packed(tensor)


@pytest.mark.parametrize("kind", [Shell, FlatShell])
def test_a_shell_is_what_it_wraps(kind: type[Shell]) -> None:
    """Whether it tells in torch's way or keeps tensors in plain attributes."""
    shell = four_bit(8, 128, kind=kind)
    assert [id(part) for part in parts(shell)] == [id(shell._data), id(shell._scale)]
    assert stored_bytes(shell) == four_bit_size(8, 128)
    assert stored_bytes(nn.Parameter(shell, requires_grad=False)) == four_bit_size(8, 128)
    assert elements(shell) == 8 * 128
    assert is_packed(shell)


@pytest.mark.parametrize("kind", [Shell, FlatShell])
def test_a_third_tensor_in_a_nested_state_counts(kind: type[Shell]) -> None:
    """Also where the shell does not list it among its tensors."""
    third = torch.ones(100)
    shell = four_bit(8, 128, kind=kind, state=State(deep=[State(table=third)]))
    assert any(part is third for part in parts(shell))
    assert stored_bytes(shell) == four_bit_size(8, 128) + 400


def test_shells_may_wrap_shells() -> None:
    """Every layer down to plain tensors."""
    inner = four_bit(8, 128)
    outer = FlatShell(inner, torch.ones(5), (8, 128))
    assert stored_bytes(outer) == four_bit_size(8, 128) + 20
    assert len(parts(outer)) == 3


def test_what_a_parameter_carries_in_a_plain_object_counts() -> None:
    """Scales, both code books and the scales' own scales."""
    weight = with_quant_state(64, 1024)
    scales = 64 * 1024 // 64
    assert stored_bytes(weight) == 64 * 512 + scales + 4 * 16 + 4 * (scales // 256) + 4 * 256
    assert elements(weight) == 64 * 1024
    assert converted_bytes(weight, None) == 64 * 1024 * 2


def test_a_parameter_that_knows_its_module_is_not_the_module() -> None:
    """Some libraries point back: the other weights are not a part of this one."""
    layer = nn.Linear(64, 64)
    layer.bias.module = layer
    layer.bias.hook = lambda: layer.weight
    assert stored_bytes(layer.bias) == 256


def test_an_object_that_holds_itself_ends() -> None:
    """The search has a depth, and enters nothing twice."""
    weight = nn.Parameter(torch.ones(4))
    weight.state = State(scale=torch.ones(2))
    weight.state.again = [weight.state, weight]
    assert stored_bytes(weight) == 24


def test_a_packed_shape_that_differs_from_the_logical_one_is_no_matter() -> None:
    """Stored as packed, converted as the weight that it stands for."""
    weight = blocks_of_32(64, 96)
    assert stored_bytes(weight) == 64 * 96 // 32 * 34
    assert elements(weight) == 64 * 96
    assert converted_bytes(weight, BF16) == 64 * 96 * 2
    assert is_packed(weight)


def test_a_virtual_tensor_is_its_payload() -> None:
    """Its shell has no storage; it is not packed, and its attributes are not the card's books."""
    card = open_card("virtual:1MiB")
    tensor = torch.zeros(10, 10, device=card.device)
    (part,) = parts(tensor)
    assert part.device.type == "cpu"
    assert stored_bytes(tensor) == 400
    assert stored_bytes(tensor[:5]) == 200
    assert not is_packed(tensor)
    assert converted_bytes(tensor, BF16) == 200


def test_sparse_layouts_weigh_indices_and_values() -> None:
    """Not what they would weigh dense."""
    dense = torch.zeros(100, 100)
    dense[3, 4] = dense[5, 6] = 1
    sparse = dense.to_sparse()
    assert stored_bytes(sparse) == 2 * 2 * 8 + 2 * 4
    assert stored_bytes(torch.zeros(4, 4)) == 64


@pytest.mark.parametrize(
    ("dtype", "copy"),
    [
        (torch.bfloat16, 0),
        (torch.float32, 200),
        (torch.float16, 200),
        (torch.float8_e4m3fn, 200),
        (torch.float8_e5m2, 200),
        (torch.int8, 200),
        (torch.uint8, 200),
        (torch.int64, 0),
        (torch.int32, 0),
        (torch.bool, 0),
        (torch.complex64, 0),
    ],
)
def test_every_dtype_is_told_what_its_copy_takes(dtype: torch.dtype, copy: int) -> None:
    """Weights of another number format are copied; indices, masks and tables are not."""
    tensor = torch.empty(100, dtype=dtype)
    assert converted_bytes(tensor, BF16) == copy
    assert converted_bytes(tensor, None) == 0
    assert stored_bytes(tensor) == 100 * tensor.element_size()


def test_dtypes_that_keep_two_values_in_a_byte_have_twice_the_elements() -> None:
    """torch counts such a pair as one."""
    pairs = torch.empty(50, dtype=torch.float4_e2m1fn_x2, device="meta")
    assert stored_bytes(pairs) == 50
    assert elements(pairs) == 100
    assert converted_bytes(pairs, BF16) == 200


def test_a_lazy_parameter_has_no_parts_yet() -> None:
    """Its shape is unknown, so nothing is counted and nothing raises."""
    lazy = nn.LazyLinear(3).weight
    assert parts(lazy) == []
    assert stored_bytes(lazy) == elements(lazy) == 0
