"""W06: tied weights are counted once, and meta tensors are not taken for ties."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.cases.common import assert_back, virtual
from tightfit.place import placed
from tightfit.units import MIB
from tightfit.weigh import identity, weight_bytes, weights
from tightfit.weigh.module_blocks import blocks_of
from tightfit.weigh.order import ordered, run_order

TRUE = 256_000


def tied(where: str, *, same_object: bool = True) -> nn.Sequential:
    """An Embedding(1000, 64) tied to a Linear(64, 1000)."""
    with torch.device(where):
        module = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False))
    shared = module[0].weight
    module[1].weight = shared if same_object else nn.Parameter(shared.detach())
    return module


@pytest.mark.parametrize("same_object", [True, False])
@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_w06_a_tie_is_planned_once(where: str, same_object: bool) -> None:
    """Per module it would be 512,000 bytes; the tie may be one object, or two on one storage."""
    module = tied(where, same_object=same_object)
    assert sum(held.tensor.nbytes for held in weights(module)) == 512_000
    assert weight_bytes(module) == TRUE
    found = blocks_of(module)
    assert (found.stored_bytes, found.elements) == (TRUE, 64_000)
    assert [(block.name, block.stored_bytes) for block in found.blocks] == [("0", TRUE)]


def test_w06_the_card_holds_one_copy_and_the_tie_lives_on() -> None:
    """What was planned is what is charged; after unloading both are the same tensor again."""
    module, card = tied("cpu"), virtual(MIB)
    with placed(module, card.device):
        assert card.read().allocated == weight_bytes(module) == TRUE
        assert identity(module[0].weight) == identity(module[1].weight)
    assert_back(card)
    assert module[0].weight is module[1].weight


def test_w06_the_block_of_a_tie_is_needed_at_both_ends() -> None:
    """Its bytes lie in the first block, which has to be there for the last layer again."""
    module = nn.Sequential(
        nn.Embedding(1000, 64), nn.Linear(64, 64), nn.Linear(64, 1000, bias=False)
    )
    module[2].weight = module[0].weight
    order = run_order(module, lambda: module(torch.zeros(1, dtype=torch.long)))
    found = ordered(blocks_of(module), order)
    assert [block.name for block in found.blocks] == ["0", "1"]
    assert order.schedule(found) == ("0", "1", "0")


def test_w06_each_use_of_a_tie_is_converted_for_itself() -> None:
    """The second layer moves nothing, and still makes its own copy in the compute dtype."""
    found = blocks_of(tied("cpu"), compute_dtype=torch.bfloat16)
    assert [block.stored_bytes for block in found.blocks] == [TRUE, 0]
    assert [block.converted_bytes for block in found.blocks] == [TRUE // 2, TRUE // 2]


def test_w06_two_meta_tensors_are_two() -> None:
    """All pointers on the meta device are 0, and say nothing."""
    with torch.device("meta"):
        module = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False))
    assert module[0].weight.data_ptr() == module[1].weight.data_ptr() == 0
    assert identity(module[0].weight) != identity(module[1].weight)
    assert weight_bytes(module) == blocks_of(module).stored_bytes == 2 * TRUE
    assert [block.stored_bytes for block in blocks_of(module).blocks] == [TRUE, TRUE]
