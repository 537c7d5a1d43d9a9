"""Weights that are exchanged or written to while they are streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.common import virtual
from tests.streaming import Case, Net
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import UsageError
from tightfit.place.streaming.streamed import Streaming, streamed


@contextmanager
def session() -> Iterator[tuple[Any, VirtualCard, Case, Streaming]]:
    """Every second piece stays; the second block streams, and the first stays."""
    torch.manual_seed(0)
    module, card = Net(8, (0, 0, 0), tied=False).eval(), virtual("1MiB")
    case = Case.of(module, lambda: module(torch.zeros(1, 8)))
    residency = case.everything("block", 1, lambda at: at % 2 == 1)
    assert [piece.name for piece in residency.streamed] == ["first", "blocks.1", "last"]
    with (
        streamed(module, card, residency, case.blocks, order=case.order) as found,
        torch.no_grad(),
    ):
        module(torch.zeros(1, 8))
        yield module, card, case, found


def assign(weight: nn.Parameter) -> None:
    weight.data = torch.ones_like(weight)


def add(weight: nn.Parameter) -> None:
    weight.add_(1)


@pytest.mark.parametrize(
    ("block", "write"), [(0, assign), (1, assign), (0, add)], ids=["there", "away", "in place"]
)
def test_a_write_that_would_be_lost_is_refused_at_the_next_call_and_at_a_change(
    block: int, write: Callable[[nn.Parameter], None]
) -> None:
    """By its path, or that of another in the same block, with what to do."""
    with session() as (module, _, case, found):
        write(module.blocks[block].up.weight)
        match = rf"`blocks.{block}\.\S+` was written to .*unfit"
        with pytest.raises(UsageError, match=match):
            module(torch.zeros(1, 8))
        with pytest.raises(UsageError, match=match):
            found.change(case.everything("block", 1, lambda _: True))
    assert not module.blocks[block].up.weight.isnan().any()


def test_what_comes_to_the_module_is_used_where_it_is_on_the_card() -> None:
    """As a LoRA is, in the place of a layer that it calls; on the host it is refused by name."""

    class Lora(nn.Module):
        def __init__(self, base: nn.Linear, device: torch.device | str) -> None:
            super().__init__()
            self.base_layer = base
            self.down = nn.Linear(8, 2, bias=False).to(device)
            self.up = nn.Linear(2, 16, bias=False).to(device)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.base_layer(x) + self.up(self.down(x))
            return y

    for block in (0, 1):
        with session() as (module, card, case, found):
            x, layer = torch.randn(1, 8), module.blocks[block].up
            plain = module(x).cpu()
            lora = Lora(layer, card.device)
            module.blocks[block].up = lora
            with_lora = module(x).cpu()
            assert not torch.equal(with_lora, plain)
            found.change(case.everything("block", 2, lambda at: at % 2 == 0))
            assert torch.equal(module(x).cpu(), with_lora)
            module.blocks[block].up = Lora(layer, "cpu")
            with pytest.raises(UsageError, match=rf"`blocks.{block}.up.down.weight` .*on the host"):
                module(x)
            module.blocks[block].up = layer
            assert torch.equal(module(x).cpu(), plain)
            del lora


def test_another_parameter_on_the_host_is_refused() -> None:
    """The module would use it, and it is where it cannot be used."""
    with session() as (module, _, _, _):
        weight = module.blocks[1].up.weight
        module.blocks[1].up.weight = nn.Parameter(torch.zeros(16, 8), requires_grad=False)
        with pytest.raises(UsageError, match=r"`blocks.1.up.weight` came .*unfit"):
            module(torch.zeros(1, 8))
        module.blocks[1].up.weight = weight
        module(torch.zeros(1, 8))


def test_a_move_to_where_it_is_changes_nothing() -> None:
    """Pipelines do that; so does a second look."""
    with session() as (module, card, _, _):
        module.to(card.device)
        module.eval()
        module(torch.zeros(1, 8))
