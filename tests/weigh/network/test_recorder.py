"""Writing down what a call does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.weigh.network.replaying import replay
from tightfit.place import placed
from tightfit.weigh import weights
from tightfit.weigh.network.graph import Graph
from tightfit.weigh.network.recorder import UntoldError, record

Call = Callable[[torch.Tensor], torch.Tensor]


def _recorded(call: Call, shape: tuple[int, ...], module: nn.Module | None = None) -> Graph:
    module = module or nn.Module()
    with placed(module, "meta"):
        return record(module, call, torch.empty(shape, device="meta"))


def _names(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes]


class _Everything(nn.Module):
    """One of each that is one node, and what is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.line = nn.Linear(8, 8)
        self.layer = nn.LayerNorm(8)
        self.register_buffer("shift", torch.randn(8, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.silu(self.norm(self.conv(x)), inplace=True)
        flat = self.layer(x.flatten(2).transpose(1, 2))
        seen = functional.scaled_dot_product_attention(self.line(flat), flat, flat)
        back = seen.transpose(1, 2).reshape(x.shape)
        back += x
        back.mul_(2).clamp_(-3, 3)
        result: torch.Tensor = back + self.shift
        return result


def test_norms_attention_and_linear_are_one_node_each() -> None:
    """By their own names, though PyTorch makes them of several operators."""
    module = _Everything()
    names = _names(_recorded(module, (1, 4, 6, 5), module))
    for name in ("group_norm", "layer_norm", "attention", "linear", "convolution"):
        assert names.count(name) == 1
    assert not {"addmm", "mm", "native_group_norm", "native_layer_norm", "bmm"} & set(names)


def test_a_recorded_call_gives_what_the_call_gives() -> None:
    """Played again on values: the same bits, and nothing that it was given is written to."""
    torch.manual_seed(0)
    module, x = _Everything().requires_grad_(False), torch.randn(2, 4, 6, 5)
    graph = _recorded(module, (2, 4, 6, 5), module)
    before = x.clone()
    assert torch.equal(replay(graph, module, x), module(x))
    assert torch.equal(x, before)


def test_what_is_written_in_place_is_made_anew() -> None:
    """No node writes to what it reads."""
    module = _Everything()
    graph = _recorded(module, (1, 4, 6, 5), module)
    for node in graph.nodes:
        schema = getattr(node.func, "_schema", None)
        assert schema is None or not schema.is_mutable
        assert not node.name.endswith("_")
        assert not set(node.reads) & set(node.makes)


def test_what_was_written_in_place_has_memory_of_its_own() -> None:
    """It is made anew, and so are its views; a second write is a third piece of memory."""

    def call(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.add_(1)
        y.mul_(3)
        return y[:, 1:].clone()

    graph = _recorded(call, (1, 3, 4, 4))
    made = [graph.values[node.makes[0] or 0].storage for node in graph.nodes]
    assert [node.name for node in graph.nodes] == ["mul", "add", "mul", "slice", "clone"]
    assert len({*made[:3], made[4]}) == 4
    assert made[3] == made[2]


def test_reading_under_another_name_what_was_written_is_refused() -> None:
    """A view that shows the write cannot be told from one that does not."""

    def call(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        view = y[:, 1:]
        y.add_(1)
        return view * 2

    with pytest.raises(UntoldError, match="under another name"):
        _recorded(call, (1, 3, 4, 4))


def test_writing_through_a_view_of_what_is_read_later_is_refused() -> None:
    """Here the view is written, and what it is a view of is read."""

    def call(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[:, :1].add_(1)
        return y * 2

    with pytest.raises(UntoldError, match="under another name"):
        _recorded(call, (1, 3, 4, 4))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + torch.randn_like(x),
        lambda x: functional.dropout(x, 0.5, training=True),
        lambda x: x + torch.rand(x.shape, device=x.device),
    ],
    ids=["randn_like", "dropout", "rand"],
)
def test_random_numbers_are_refused(call: Call) -> None:
    """Another run would draw others."""
    with pytest.raises(UntoldError, match="random"):
        _recorded(call, (1, 3, 4, 4))


def test_a_result_that_the_call_did_not_make_is_refused() -> None:
    """And so is no tensor at all."""
    with pytest.raises(UntoldError):
        _recorded(lambda x: (x, x), (1, 3, 4, 4))  # type: ignore[arg-type,return-value]


def test_what_depends_on_no_input_is_constant_and_the_rest_is_not() -> None:
    """Weights, what is made of them, and what is made of nothing."""
    module = nn.Conv2d(3, 3, 1)

    def call(x: torch.Tensor) -> torch.Tensor:
        scale = torch.ones(3, 1, 1, device=x.device) * module.weight.mean()
        scale.add_(1)
        return x * scale

    graph = _recorded(call, (1, 3, 4, 4), module)
    constant = {node.name for node in graph.nodes if node.constant}
    assert "mean" in constant
    assert {node.name for node in graph.nodes if not node.constant} == {"mul"}
    x = torch.randn(1, 3, 4, 4)
    assert torch.equal(replay(graph, module, x), call(x))


@pytest.mark.parametrize("value", [0, 1, 2.5])
def test_what_takes_only_a_type_of_its_input_is_constant(value: float) -> None:
    """Zeros, ones, and any other value, as they are made for what lies before the first frame."""

    def call(x: torch.Tensor) -> torch.Tensor:
        made = {0: x.new_zeros(2, 3), 1: x.new_ones(2, 3)}.get(value, x.new_full((2, 3), value))
        return torch.cat([made, x])

    graph = _recorded(call, (4, 3))
    assert [node.constant for node in graph.nodes] == [True, False]
    assert graph.nodes[0].reads == ()
    x = torch.randn(4, 3)
    assert torch.equal(replay(graph, nn.Module(), x), call(x))


def test_what_does_not_lead_to_the_result_is_left_out() -> None:
    """However much it is."""

    def call(x: torch.Tensor) -> torch.Tensor:
        functional.max_pool2d(x * 3, 2)
        return x + 1

    assert _names(_recorded(call, (1, 3, 4, 4))) == ["add"]


def test_values_that_share_memory_say_so() -> None:
    """A view and what it is a view of, and no others."""
    graph = _recorded(lambda x: (x * 2)[:, 1:].transpose(2, 3) + 1, (1, 3, 4, 5))
    made = {node.name: graph.values[node.makes[0] or 0] for node in graph.nodes}
    assert made["mul"].storage == made["transpose"].storage
    assert made["mul"].storage != graph.values[graph.given].storage != made["add"].storage


def test_the_module_is_left_as_it_was() -> None:
    """Its weights are where they were, the same objects with the same bits; its hooks still run."""
    torch.manual_seed(0)
    module = _Everything()
    before = [(held.path, held.tensor, held.tensor.detach().clone()) for held in weights(module)]
    _recorded(module, (1, 4, 6, 5), module)
    after = {held.path: held.tensor for held in weights(module)}
    for path, tensor, value in before:
        assert after[path] is tensor
        assert torch.equal(tensor, value)
    x = torch.randn(1, 4, 6, 5)
    with torch.no_grad():
        assert torch.isfinite(module(x)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types_and_sizes_are_those_of_a_run(dtype: torch.dtype) -> None:
    """Of every value that a node makes."""
    module = _Everything().to(dtype).requires_grad_(False)
    with placed(module, "meta"):
        graph = record(module, module, torch.empty(2, 4, 6, 5, device="meta", dtype=dtype))
    seen: dict[int, torch.Tensor] = {}
    replay(graph, module, torch.randn(2, 4, 6, 5, dtype=dtype), seen)
    for number, tensor in seen.items():
        assert graph.values[number].shape == tuple(tensor.shape)
        assert graph.values[number].dtype == tensor.dtype


def test_multiply_adds_are_counted_as_two() -> None:
    """A convolution, a matrix product and attention, by hand."""
    module = _Everything()
    graph = _recorded(module, (1, 4, 6, 5), module)
    flops = {node.name: node.flops for node in graph.nodes}
    assert flops["convolution"] == 2 * 30 * 8 * 4 * 9
    assert flops["linear"] == 2 * 30 * 8 * 8
    assert flops["attention"] == 2 * 30 * 30 * (8 + 8)
    assert flops["silu"] == 0
