"""Blocks that are compiled: the same graphs, and the same bits, as where they are resident."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.streaming import Case, Net
from tightfit.card import open_card
from tightfit.errors import UsageError
from tightfit.place.streaming.compiled import Door, compiled_of
from tightfit.place.streaming.running import Call, Running
from tightfit.place.streaming.streamed import streamed
from tightfit.plan.streaming.pieces import Level

WIDTH = 16


class Compiler:
    """A backend that runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        del inputs
        self.graphs += 1
        return graph


def call(block: nn.Module, backend: Any) -> None:
    block.compile(backend=backend)


def one_graph(block: nn.Module, backend: Any) -> None:
    block.compile(backend=backend, fullgraph=True)


def forward(block: nn.Module, backend: Any) -> None:
    block.forward = torch.compile(block.forward, backend=backend)  # type: ignore[method-assign]


Way = Callable[[nn.Module, Any], None]


@pytest.fixture(autouse=True)
def forgetting() -> Iterator[None]:
    """Graphs of one test are no graphs of another."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network() -> tuple[Net, torch.Tensor]:
    """Two kinds of blocks, one of them three times."""
    torch.manual_seed(3)
    return Net(WIDTH, (0, 0, 1, 0), tied=False).eval().requires_grad_(False), torch.randn(2, WIDTH)


def everything(module: Net, level: Level = "block") -> Any:
    """A session in which nothing is resident."""
    case = Case.of(module, lambda: module(torch.zeros(1, WIDTH)))
    residency = case.everything(level, 2, lambda _: False)
    return streamed(module, open_card("cpu"), residency, case.blocks, order=case.order)


@pytest.mark.parametrize("way", [one_graph, forward])
@pytest.mark.parametrize("when", ["before", "inside"])
def test_streamed_blocks_compile_as_resident_ones(way: Way, when: str) -> None:
    """As many graphs, one for each kind of block, in the first step; none for a slot or a step."""
    module, x = network()
    wanted = module(x)
    resident, compiler = Compiler(), Compiler()
    for block in network()[0].blocks if when == "inside" else module.blocks:
        way(block, resident)
    if when == "before":
        assert torch.equal(module(x), wanted)
        assert resident.graphs == 2
        compiler = resident
    for session_number in range(2):
        with everything(module) as session:
            if when == "inside" and session_number == 0:
                for block in module.blocks:
                    way(block, compiler)
            start = compiler.graphs
            for _ in range(4):
                assert torch.equal(module(x), wanted)
            assert compiler.graphs - start == (2 if session_number == 0 else 0)
            assert session.copies.late == 0
            assert session.copies.grown == 0
    assert torch.equal(module(x), wanted)


def test_what_a_backend_does_to_graphs_is_kept() -> None:
    """The bits of the resident module, compiled by the same one."""
    module, x = network()
    for block in module.blocks:
        block.compile(backend="aot_eager")
    wanted = module(x)
    with everything(module):
        for _ in range(3):
            assert torch.equal(module(x), wanted)


def test_layers_that_stream_one_by_one_end_graphs() -> None:
    """The result is the same, and after the first step nothing is compiled any more."""
    module, x = network()
    wanted, compiler = module(x), Compiler()
    with everything(module, "leaf") as session:
        for block in module.blocks:
            block.compile(backend=compiler)
        assert torch.equal(module(x), wanted)
        assert torch.equal(module(x), wanted)
        count = compiler.graphs
        for _ in range(3):
            assert torch.equal(module(x), wanted)
        assert compiler.graphs == count
        assert session.copies.grown == 0


def test_a_model_that_is_compiled_as_one_ends_its_graph_at_each_block() -> None:
    """Before or inside, the result is the same."""
    module, x = network()
    wanted, compiler = module(x), Compiler()
    module.compile(backend=compiler)
    assert torch.equal(module(x), wanted)
    with everything(module):
        module(x)
        module(x)
        count = compiler.graphs
        for _ in range(3):
            assert torch.equal(module(x), wanted)
        assert compiler.graphs == count


@pytest.mark.parametrize("level", ["block", "leaf"])
def test_one_graph_around_what_streams_is_refused_with_the_reason(level: Level) -> None:
    """By the compiler, in our words; the module can be called as before."""
    module, x = network()
    wanted = module(x)
    with everything(module, level):
        module(x)
        for part in [module] if level == "block" else module.blocks:
            part.compile(backend=Compiler(), fullgraph=True)
        with pytest.raises(Exception, match="so compile the blocks and not what is around them"):
            module(x)
        for part in [module] if level == "block" else module.blocks:
            part._compiled_call_impl = None
        assert torch.equal(module(x), wanted)


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_error_in_a_compiled_block_leaves_it_usable(error: type[BaseException]) -> None:
    """The slot is free again, and the next call is right."""
    module, x = network()
    failing: list[type[BaseException]] = []

    @torch.compiler.disable
    def fail(*_: object) -> None:
        if failing:
            raise failing.pop()

    wanted = module(x)
    for block in module.blocks:
        block.compile(backend=Compiler())
    module.blocks[1].register_forward_hook(fail)
    with everything(module) as session:
        for _ in range(2):
            assert torch.equal(module(x), wanted)
            failing.append(error)
            with pytest.raises(error):
                module(x)
        assert torch.equal(module(x), wanted)
        assert session.copies.grown == 0


def test_compiled_blocks_are_what_they_were_afterwards() -> None:
    """Also one that was compiled anew meanwhile, and after an error."""
    module, x = network()
    for block in module.blocks:
        block.compile(backend=Compiler())
    before = [block._compiled_call_impl for block in module.blocks]

    def stop() -> None:
        with everything(module):
            module(x)
            module.blocks[0].compile(backend=Compiler())
            raise UsageError("planted")

    with pytest.raises(UsageError, match="planted"):
        stop()
    after = [block._compiled_call_impl for block in module.blocks]
    assert after[1:] == before[1:]
    assert after[0] not in before


@pytest.mark.parametrize("way", [call, forward])
def test_calls_that_a_compiler_runs_are_seen_to_be_under_way(way: Way) -> None:
    """Nothing is taken from them when somebody looks: their frames are there, rewritten."""
    ended: list[tuple[nn.Module, bool]] = []

    def end(call: Call, seen: bool) -> None:
        ended.append((call.module, seen))

    running = Running(end)

    @torch.compiler.disable
    def look() -> None:
        running.end_unseen()

    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + 1
            look()
            return x * 2

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = Looks()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inside(x + 1) + 1

    @torch.compiler.disable
    def before(module: nn.Module, _: object) -> None:
        running.enter(module)

    @torch.compiler.disable
    def after(module: nn.Module, _: object, __: object) -> None:
        running.leave(module)

    outer = Outer()
    for module in (outer, outer.inside):
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after, always_call=True)
        way(module, Compiler())
    for _ in range(2):
        outer(torch.zeros(1))
        assert ended == [(outer.inside, True), (outer, True)]
        ended.clear()


def door(module: nn.Module, name: str, went: list[str], *, first: bool = False) -> Door:
    """It writes its name down."""

    def enter(run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        went.append(name)
        return run(*args, **kwargs)

    return Door(module, enter, first=first)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_doors_go_as_they_came_but_the_first_ones_stand_before(order: tuple[int, ...]) -> None:
    """Whoever leaves first, the others stay, and at the end nothing is left of them."""
    module, went = nn.Linear(2, 2), list[str]()
    module.compile(backend=Compiler())
    compiled = module._compiled_call_impl
    doors = [
        door(module, "a", went),
        door(module, "b", went, first=True),
        door(module, "c", went),
    ]
    names = {0: "a", 1: "b", 2: "c"}
    for leaving in order:
        went.clear()
        module(torch.ones(1, 2))
        assert went == [name for name in ("b", "a", "c") if name in names.values()]
        assert compiled_of(module) is compiled
        doors[leaving].remove()
        doors[leaving].remove()
        del names[leaving]
    assert module._compiled_call_impl is compiled


def test_a_module_that_is_not_compiled_has_no_name_of_ours_after_its_doors() -> None:
    """Neither by one nor by two."""
    module, went = nn.Linear(2, 2), list[str]()
    before = set(vars(module))
    outer, inner = door(module, "outer", went, first=True), door(module, "inner", went)
    module(torch.ones(1, 2))
    assert went == ["outer", "inner"]
    outer.remove()
    inner.remove()
    assert set(vars(module)) == before
