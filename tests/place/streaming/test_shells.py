"""Weights that are more than one tensor, while they are streamed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.cases.common import assert_back, virtual
from tests.packed_layers import Coded, Layers, coded_layers, four_bit_layers
from tests.streaming import Case
from tests.weigh.shells import Shell
from tightfit import fit, unfit
from tightfit.api.fitting import fitted
from tightfit.card import open_card
from tightfit.card.base import Card
from tightfit.errors import UsageError
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.units import MIB

WIDTH, COUNT = 32, 5
Make = Callable[[int, int], Layers]
BOTH = pytest.mark.parametrize("make", [coded_layers, four_bit_layers])


@contextmanager
def streaming(module: Layers, card: Card) -> Iterator[Streaming]:
    """Every other layer stays."""
    case = Case.of(module, lambda: module(torch.zeros(2, WIDTH)))
    residency = case.everything("leaf", 2, lambda at: at % 2 == 1)
    with streamed(module, card, residency, case.blocks, order=case.order) as session:
        yield session


def state(weight: Any) -> Any:
    """What a weight carries beside its bytes."""
    return weight.quant_state if hasattr(weight, "quant_state") else weight.state


class Marked(nn.Parameter):
    """A parameter of a class of its own, with bytes of its own."""

    mark = "a mark of its class"


class MarkedLinear(nn.Linear):
    """Looks at the class of its weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.weight.mark
        return super().forward(x)


@BOTH
@torch.no_grad()
def test_a_state_stays_the_object_that_others_have(make: Make) -> None:
    """What a layer has of its weight's state shows the same tensors, then and afterwards."""
    module, card = make(WIDTH, COUNT), virtual(MIB)
    states = [state(layer.weight) for layer in module.layers]
    tables = [each.table for each in states]
    with streaming(module, card):
        module(torch.randn(1, WIDTH))
        for layer, each, table in zip(module.layers, states, tables, strict=True):
            assert state(layer.weight) is each
            assert each.table is table
            assert table.device == card.device
    assert all(table.device.type == "cpu" for table in tables)
    assert [state(layer.weight) for layer in module.layers] == states
    assert_back(card)


@BOTH
@torch.no_grad()
def test_shells_are_planned_and_fit(make: Make) -> None:
    """Within a budget that does not hold them all; the copy that a layer makes is in the plan."""
    module = make(WIDTH, COUNT)
    given = torch.randn(2, WIDTH)
    wanted = module(given)
    free = virtual(MIB)
    fit(module, card=free, example=[given])
    need = fitted(module).plan.stages[0].demand.activations.known
    unfit(module)
    assert need > 4 * WIDTH * WIDTH  # a layer's weight as it is used
    weights = sum(each.bytes for each in fitted_units(module))
    card = virtual(need + 2 * weights // COUNT + 16 * 1024)
    fit(module, card=card, example=[given], mode="none")
    assert torch.equal(module(given).cpu(), wanted)
    assert fitted(module).attempts == []
    unfit(module)
    assert torch.equal(module(given), wanted)
    assert_back(card)


def fitted_units(module: Layers) -> tuple[Any, ...]:
    return Case.of(module, lambda: module(torch.zeros(2, WIDTH))).units


@BOTH
@torch.no_grad()
def test_a_state_dict_has_whole_weights(make: Make) -> None:
    """Of the same classes with what they carry, on the host; a module that loads it is equal."""
    module, other = make(WIDTH, COUNT), make(WIDTH, COUNT)
    given = torch.randn(2, WIDTH)
    wanted = module(given)
    with streaming(module, virtual(MIB)):
        saved = module.state_dict()
    for at, layer in enumerate(other.layers):
        weight: Any = saved[f"layers.{at}.weight"]
        assert type(weight) is type(module.layers[at].weight)
        assert weight.device.type == state(weight).table.device.type == "cpu"
        layer.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, False)
        layer.bias.copy_(saved[f"layers.{at}.bias"])
    assert torch.equal(other(given), wanted)


@torch.no_grad()
def test_a_layer_that_writes_its_state_itself_is_not_asked_for_it() -> None:
    """What it would write is NaN: it is refused by name, and works again afterwards."""

    class Writes(type(four_bit_layers(WIDTH, 1).layers[0])):  # type: ignore[misc]
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[f"{prefix}weight.table"] = self.quant_state.table

    module = Layers([Writes(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]).eval()
    with streaming(module, virtual(MIB)), pytest.raises(UsageError, match=r"`layers\.0` .*unfit"):
        module.state_dict()
    assert torch.equal(
        module.state_dict()["layers.0.weight.table"], module.layers[0].quant_state.table
    )


@torch.no_grad()
def test_a_parameter_of_another_class_keeps_it() -> None:
    """Where the card's tensors are PyTorch's own; a virtual card says that its are not."""
    module = Layers([MarkedLinear(WIDTH, WIDTH) for _ in range(COUNT)]).eval()
    for layer in module.layers:
        layer.weight = Marked(layer.weight.detach(), requires_grad=False)
    before = list(module.parameters())
    given = torch.randn(2, WIDTH)
    wanted = module(given)
    with streaming(module, open_card("cpu")):
        assert torch.equal(module(given), wanted)
        assert all(type(layer.weight) is Marked for layer in module.layers)
        assert module.layers[0].weight.isnan().all()
    assert all(one is other for one, other in zip(before, module.parameters(), strict=True))
    with (
        pytest.raises(UsageError, match=r"`layers\.0\.weight` is a Marked"),
        streaming(module, virtual(MIB)),
    ):
        pass
    assert torch.equal(module(given), wanted)


@torch.no_grad()
def test_what_is_written_into_a_part_is_noticed() -> None:
    """As for any weight: values do not stay, so the next call is refused by a part's name."""
    module = coded_layers(WIDTH, COUNT)
    with streaming(module, virtual(MIB)):
        module(torch.randn(1, WIDTH))
        module.layers[1].weight._data.add_(2)
        with pytest.raises(UsageError, match=r"`layers\.1\.weight\._data` was written to"):
            module(torch.randn(1, WIDTH))


@torch.no_grad()
def test_an_exchanged_shell_is_noticed() -> None:
    """Another weight in its place is on the host, and is named."""
    module = coded_layers(WIDTH, COUNT)
    with streaming(module, virtual(MIB)):
        module.layers[1].weight = coded_layers(WIDTH, 1).layers[0].weight
        with pytest.raises(UsageError, match=r"`layers\.1\.weight` came to the module"):
            module(torch.randn(1, WIDTH))


def test_a_shell_that_others_hold_is_refused_and_whole() -> None:
    """It cannot be exchanged for one on the card; once it is let go, it can."""
    module = coded_layers(WIDTH, COUNT)
    given = torch.randn(2, WIDTH)
    with torch.no_grad():
        wanted = module(given)
    held = weakref.ref(module.layers[2].weight)
    with (
        pytest.raises(UsageError, match=r"`layers\.2\.weight` \(Coded\)"),
        streaming(module, virtual(MIB)),
    ):
        pass
    assert held() is module.layers[2].weight
    with torch.no_grad():
        assert torch.equal(module(given), wanted)
        del held
        with streaming(module, virtual(MIB)):
            assert torch.equal(module(given).cpu(), wanted)


def test_a_weight_that_is_yet_to_be_packed_is_refused() -> None:
    """A parameter of bitsandbytes packs itself on its way to a card: it has to have done so."""
    module = four_bit_layers(WIDTH, 1)
    module.layers[0].weight.bnb_quantized = False
    with pytest.raises(UsageError, match=r"`layers\.0\.weight` is not packed yet"):
        fit(module, card=virtual(MIB))


@pytest.mark.parametrize("name", ["Int8Params", "Hidden", "Elsewhere"])
def test_what_is_not_known_is_refused_by_name(name: str) -> None:
    """Scales that a layer moves away, tensors that do not show or are made when asked."""
    module: Any = Layers([nn.Linear(WIDTH, WIDTH)])
    if name == "Int8Params":
        kind = type(name, (nn.Parameter,), {})
        weight: Any = kind(torch.zeros(WIDTH, WIDTH, dtype=torch.int8), False)
    else:
        kind = type(name, (Shell,), {})
        weight = kind(torch.zeros(WIDTH, WIDTH), torch.ones(1), (WIDTH, WIDTH))
        if name == "Elsewhere":
            made = property(lambda _: torch.ones(1))
            kind.made, kind.__tensor_flatten__ = made, lambda _: (["_data", "made"], None)
        else:
            vars(weight).clear()
    module.layers[0]._parameters["weight"] = weight
    with pytest.raises(UsageError, match=rf"`layers\.0\.weight` is packed.*\({name}\)"):
        fit(module, card=virtual(MIB))


class OwnWays(Coded):
    """Does the function of a layer itself, and knows none of the operators below it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            x, weight, *rest = args
            return func(x, weight.values(), *rest, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        if func is not torch.ops.aten.detach.default:
            raise NotImplementedError(func)
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.parametrize("card", ["cpu", "virtual:1MiB"])
@torch.no_grad()
def test_a_wrapper_is_asked_before_the_tensors_of_a_card(card: str) -> None:
    """As torchao's are: what it does of a layer is seen by nobody else, wherever it is."""
    module = coded_layers(WIDTH, COUNT)
    for layer in module.layers:
        known: Any = layer.weight
        weight = OwnWays(known._data, known._scale, known.state)
        layer.weight = nn.Parameter(weight, requires_grad=False)
    given = torch.randn(2, WIDTH)
    wanted = module(given)
    with streaming(module, open_card(card)):
        assert torch.equal(module(given).cpu(), wanted)
    assert torch.equal(module(given), wanted)


@torch.no_grad()
def test_a_wrapper_that_is_tied_is_one() -> None:
    """Both places show it, on the card and afterwards."""
    module = coded_layers(WIDTH, COUNT)
    module.layers[4].weight = module.layers[0].weight
    given = torch.randn(2, WIDTH)
    wanted = module(given)
    card = virtual(MIB)
    with streaming(module, card):
        assert module.layers[4].weight is module.layers[0].weight
        assert torch.equal(module(given).cpu(), wanted)
    assert module.layers[4].weight is module.layers[0].weight
    assert torch.equal(module(given), wanted)
    assert_back(card)


class Reaching(nn.Module):
    """Uses the weight of a layer that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.proj = coded_layers(WIDTH, 3), coded_layers(WIDTH, 1).layers[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.body(x), self.proj.weight)


@torch.no_grad()
def test_a_wrapper_that_is_used_from_elsewhere_stays() -> None:
    """All that it is made of: only the call of the whole covers that use."""
    module = Reaching().eval()
    given = torch.randn(2, WIDTH)
    wanted = module(given)
    fit(module, card=virtual(MIB), mode="none", example=[given])
    assert [each.name for each in fitted(module).session.groups if each.stays] == ["proj"]
    assert torch.equal(module(given).cpu(), wanted)
    unfit(module)
    assert torch.equal(module(given), wanted)


class Peeking(Reaching):
    """Looks at values first, so that nobody knows beforehand what it uses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if float(x.sum()) < 1e9 else -x)


@torch.no_grad()
def test_a_wrapper_that_is_away_is_missed_where_it_is_used() -> None:
    """What could not be told beforehand is refused at the first call, and computes with no NaN."""
    module = Peeking().eval()
    given = torch.randn(2, WIDTH)
    wanted = module(given)
    fit(module, card=virtual(MIB), mode="none", example=[given])
    with pytest.raises(UsageError, match=r"`proj\.weight\.\w+.*` is used while"):
        module(given)
    unfit(module)
    assert torch.equal(module(given), wanted)
