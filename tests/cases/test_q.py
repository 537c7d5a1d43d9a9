"""Group Q: quantised weights. Here what is planned; what must run runs where it is built."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.cases.common import assert_back, virtual
from tests.weigh.shells import FlatShell, Shell, State, four_bit, with_quant_state
from tightfit.allocators import ALIGNMENT, round_up
from tightfit.place import placed
from tightfit.units import MIB
from tightfit.weigh import weight_bytes
from tightfit.weigh.module_blocks import blocks_of
from tightfit.weigh.tensors import converted_bytes, parts, stored_bytes

BF16 = torch.bfloat16
ROWS, COLUMNS = 1024, 4096
SCALES = ROWS * COLUMNS // 64

# Each weight is a matrix of 1024 x 4096; the bytes of its inner tensors are worked out by hand.
HALF_BYTES = ROWS * COLUMNS // 2
WEIGHTS = {
    "shell": (four_bit(ROWS, COLUMNS), HALF_BYTES + 2 * SCALES),
    "shell that does not tell": (four_bit(ROWS, COLUMNS, kind=Shell), HALF_BYTES + 2 * SCALES),
    "shell with a state": (
        four_bit(ROWS, COLUMNS, state=State(table=torch.zeros(16))),
        HALF_BYTES + 2 * SCALES + 64,
    ),
    "shell of shells": (
        FlatShell(four_bit(ROWS, COLUMNS), torch.zeros(ROWS), (ROWS, COLUMNS)),
        HALF_BYTES + 2 * SCALES + 4 * ROWS,
    ),
    "int8": (
        nn.Parameter(torch.zeros(ROWS, COLUMNS, dtype=torch.int8), requires_grad=False),
        ROWS * COLUMNS,
    ),
    "int4 in uint8": (
        nn.Parameter(torch.zeros(ROWS, COLUMNS // 2, dtype=torch.uint8), requires_grad=False),
        HALF_BYTES,
    ),
    "quantisation state": (
        with_quant_state(ROWS, COLUMNS),
        HALF_BYTES + SCALES + 4 * 16 + 4 * SCALES // 256 + 4 * 256,
    ),
    "fp8": (
        nn.Parameter(torch.zeros(ROWS, COLUMNS).to(torch.float8_e4m3fn), requires_grad=False),
        ROWS * COLUMNS,
    ),
}


def layer(weight: torch.Tensor) -> nn.Linear:
    """A linear layer of that matrix."""
    with torch.device("meta"):
        linear = nn.Linear(COLUMNS, ROWS, bias=False)
    keeps = isinstance(weight, nn.Parameter)
    linear.weight = weight if keeps else nn.Parameter(weight, requires_grad=False)
    return linear


@pytest.mark.parametrize("name", WEIGHTS)
def test_q05_the_bytes_of_a_packed_weight_are_those_of_its_inner_tensors(name: str) -> None:
    """Not element size times elements of what it looks like; and no dtype makes the plan crash."""
    weight, size = WEIGHTS[name]
    module = layer(weight)
    found = blocks_of(module, compute_dtype=BF16)
    assert stored_bytes(weight) == weight_bytes(module) == found.stored_bytes == size
    assert found.stored_bytes < weight.numel() * 8  # the shells look like 8 MiB
    assert found.elements == ROWS * COLUMNS
    assert found.converted_bytes == 2 * ROWS * COLUMNS
    for dtype in (None, torch.float16, torch.float32, torch.float8_e5m2):
        assert converted_bytes(weight, dtype) >= 0


@pytest.mark.parametrize("allocator", ["exact", "native", "async"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_q05_the_plan_and_the_card_agree_to_the_grain(name: str, allocator: str) -> None:
    """The inner tensors on a card take what was planned, each rounded up to the grain."""
    weight, _ = WEIGHTS[name]
    card = virtual(f"64MiB,allocator={allocator}")
    before = card.read().allocated
    inner = parts(weight)
    on_card = [part.to(card.device) for part in inner]
    taken = card.read().allocated - before
    assert taken == sum(round_up(part.nbytes, ALIGNMENT) for part in inner)
    assert 0 <= taken - stored_bytes(weight) < ALIGNMENT * len(inner)
    assert sum(map(stored_bytes, on_card)) == stored_bytes(weight)
    del on_card
    card.trim()
    assert_back(card, before)


@pytest.mark.parametrize("name", ["shell", "int8", "int4 in uint8", "fp8"])
def test_q05_a_placed_layer_takes_what_was_planned(name: str) -> None:
    """Through the door that jobs use; on the card it weighs the same, and nothing stays."""
    weight, size = WEIGHTS[name]
    module, card = layer(weight), virtual(64 * MIB)
    with placed(module, card.device):
        assert card.read().allocated == round_up(size, ALIGNMENT)
        assert (
            blocks_of(module, compute_dtype=BF16).blocks
            == blocks_of(layer(weight), compute_dtype=BF16).blocks
        )
    assert_back(card)
