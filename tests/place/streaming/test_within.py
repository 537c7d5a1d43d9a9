"""Layers that get another `forward` instead of a hook: right wherever they are called from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from tests.cases.common import virtual
from tests.streaming import Case, Net
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import UsageError
from tightfit.place.streaming.streamed import Streaming, streamed

WIDTH = 16


def network() -> tuple[Net, Case, torch.Tensor]:
    """Three blocks of two layers and a table, and one that is never called itself."""
    torch.manual_seed(0)
    module = Net(WIDTH, (0, 0, 0, 3), tied=False).eval().requires_grad_(False)
    x = torch.randn(2, WIDTH)
    return module, Case.of(module, lambda: module(x)), x


@contextmanager
def session(module: Net, case: Case) -> Iterator[tuple[Streaming, VirtualCard]]:
    """Everything is streamed, a block at a time."""
    card = virtual("1MiB")
    card.faults.lanes = "strict"
    residency = case.everything("block", 2, lambda _: False)
    with (
        streamed(module, card, residency, case.blocks, order=case.order) as found,
        torch.no_grad(),
    ):
        yield found, card
    assert card.hazards == ()
    assert card.read().allocated == 0


def test_layers_of_a_block_have_no_hooks_and_are_as_they_were_afterwards() -> None:
    """The block itself has hooks, and so have layers of one that nobody calls."""
    module, case, x = network()
    before = {path: set(vars(part)) for path, part in module.named_modules()}
    wanted = module(x)
    with session(module, case):
        block: Any = module.blocks[0]
        assert block._forward_pre_hooks
        assert not block.up._forward_pre_hooks
        assert "forward" in vars(block.up)
        uncalled: Any = module.blocks[3]
        assert uncalled.one._forward_pre_hooks
        torch.testing.assert_close(module(x).cpu(), wanted)
        assert not block.up._forward_hooks
    assert {path: set(vars(part)) for path, part in module.named_modules()} == before


@pytest.mark.parametrize("way", ["call", "forward"])
def test_a_layer_called_by_itself_finds_its_weights_for_that_long(way: str) -> None:
    """By its name or by its `forward`; inputs come to the card as for any outermost call."""
    module, case, x = network()
    block: Any = module.blocks[1]
    wanted = block.up(x)
    with session(module, case):
        module(x)
        layer = block.up if way == "call" else block.up.forward
        for _ in range(2):
            torch.testing.assert_close(layer(x).cpu(), wanted)
            assert block.up.weight.isnan().all()
        with pytest.raises(RuntimeError, match="shape"):
            layer(torch.zeros(1, 3))
        assert block.up.weight.isnan().all()
        torch.testing.assert_close(layer(x).cpu(), wanted)


def test_hooks_that_were_there_before_see_the_weights() -> None:
    """Such a layer has a hook of ours as well, which comes first."""
    module, case, x = network()
    block: Any = module.blocks[1]
    seen: list[bool] = []
    block.up.register_forward_pre_hook(
        lambda layer, _: seen.append(bool(layer.weight.isnan().any()))
    )
    with session(module, case):
        module(x)
        block.up(x)
    assert seen == [False, False]


def test_hooks_that_came_later_and_ran_too_early_are_refused_once() -> None:
    """Within the block they are right at once; a call of the layer alone says so, and is then."""
    module, case, x = network()
    block: Any = module.blocks[1]
    wanted = block.up(x)
    seen: list[bool] = []

    def look(layer: Any, args: Any) -> None:
        del args
        seen.append(bool(layer.weight.isnan().any()))

    with session(module, case):
        handle = block.up.register_forward_pre_hook(look)
        module(x)
        assert seen == [False]
        with pytest.raises(UsageError, match="call it again"):
            block.up(x)
        seen.clear()
        torch.testing.assert_close(block.up(x).cpu(), wanted)
        module(x)
        assert seen == [False, False]
        handle.remove()
    assert "forward" not in vars(block.up)
    assert not block.up._forward_pre_hooks


def test_another_thread_waits_for_the_block_to_end() -> None:
    """A layer that is called there meanwhile is not taken for one that the block calls."""
    module, case, x = network()
    block: Any = module.blocks[1]
    wanted = block.up(x)
    results: list[torch.Tensor] = []
    ended: list[bool] = []

    def other() -> None:
        with torch.no_grad():
            results.append(block.up(x).cpu())

    def start(*_: Any) -> None:
        thread.start()
        thread.join(0.05)
        ended.append(bool(results))

    with session(module, case):
        module(x)
        thread = threading.Thread(target=other)
        handle = block.down.register_forward_hook(start)
        module(x)
        thread.join()
        handle.remove()
    assert ended == [False]
    torch.testing.assert_close(results[0], wanted)


def test_where_layers_move_one_by_one_they_have_hooks() -> None:
    """After a change of the level; and the bits stay."""
    module, case, x = network()
    block: Any = module.blocks[0]
    by_itself = block.up(x)
    with session(module, case) as (found, _):
        wanted = module(x).cpu()
        found.change(case.everything("leaf", 2, lambda _: False))
        assert "forward" not in vars(block.up)
        assert block.up._forward_pre_hooks
        assert torch.equal(module(x).cpu(), wanted)
        found.change(case.everything("block", 2, lambda at: at % 2 == 0))
        assert torch.equal(module(x).cpu(), wanted)
        torch.testing.assert_close(block.up(x).cpu(), by_itself)


def test_blocks_that_are_compiled_later_are_one_graph() -> None:
    """What stands in for a layer's `forward` is seen through."""
    module, case, x = network()
    wanted = module(x)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, example: Any) -> Any:
        del example
        graphs.append(graph)
        return graph

    residency = case.everything("block", 2, lambda _: False)
    torch._dynamo.reset()
    with (
        streamed(module, open_card("cpu"), residency, case.blocks, order=case.order),
        torch.no_grad(),
    ):
        assert torch.equal(module(x), wanted)
        blocks: list[nn.Module] = list(module.blocks)[:3]
        for block in blocks:
            block.compile(backend=backend, fullgraph=True)
        for _ in range(3):
            assert torch.equal(module(x), wanted)
        assert len(graphs) == 1
    torch._dynamo.reset()


def test_a_layer_of_a_block_that_stays_is_left_alone() -> None:
    """Nothing stands in for it from the change on, and something does after the next."""
    module, case, x = network()
    block: Any = module.blocks[0]
    with session(module, case) as (found, card):
        wanted = module(x).cpu()
        kept = block.up.forward
        found.change(case.everything("block", 2, lambda _: True))
        assert "forward" not in vars(block.up)
        assert torch.equal(module(x).cpu(), wanted)
        inputs = x.to(card.device)
        by_itself = block.up(inputs).cpu()
        assert torch.equal(kept(inputs).cpu(), by_itself)
        found.change(case.everything("block", 2, lambda _: False))
        assert "forward" in vars(block.up)
        assert torch.equal(module(x).cpu(), wanted)
        assert torch.equal(kept(x).cpu(), by_itself)
        del inputs
