"""fit and modules that are stored in eight bits, from call to call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.cases.common import assert_back, virtual
from tests.place.converting.nets import meant, network, store
from tightfit.errors import MemoryShortage, UsageError
from tightfit.testing import oom_after
from tightfit.units import MIB
from tightfit.weigh import weight_bytes

WIDTH = 256
KINDS = (0, 3, 0, 0, 0)


def expected(net: nn.Module, *given: Any, dtype: torch.dtype) -> torch.Tensor:
    """By the weights that are meant, whole on a card."""
    card = virtual(1 << 30)
    right = meant(net, dtype).to(card.device)
    with torch.no_grad():
        result: torch.Tensor = right(*(each.to(card.device) for each in given)).cpu()
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["auto", "none", "high"])
def test_the_numbers_are_those_of_the_weights_that_are_meant(dtype: torch.dtype, mode: str) -> None:
    """At each budget; and the peak is within it."""
    net, x = network(KINDS, width=WIDTH, dtype=dtype), torch.randn(2, WIDTH).to(dtype)
    wanted = expected(net, x, dtype=dtype)
    whole = weight_bytes(net)
    peaks = []
    for budget in (3 * whole, 2 * whole, int(1.5 * whole)):
        card = virtual(budget)
        try:
            tightfit.fit(net, card=card, mode=mode, example=(x,))
        except MemoryShortage:
            assert mode == "high"
            continue
        for _ in range(2):
            assert torch.equal(net(x).cpu(), wanted)
        peaks.append(card.read().peak_allocated or 0)
        assert peaks[-1] <= budget
        assert tightfit.fitted(net).session.copies.grown == 0
        tightfit.unfit(net)
        assert_back(card)
    assert peaks


def test_the_dtype_of_a_call_decides_and_the_room_follows() -> None:
    """bfloat16, then float32, which takes twice the scratch, and back."""
    net = network((0, 0, 0), width=WIDTH, dtype=torch.float32)
    for part in net.modules():  # all of it in eight bits, or in what a call computes in
        if isinstance(part, nn.Linear):
            part.register_parameter("bias", None)
    whole, card = weight_bytes(net), virtual(2 * MIB)
    x = torch.randn(2, WIDTH)
    calls = [(dtype, x.to(dtype)) for dtype in (torch.bfloat16, torch.float32, torch.bfloat16)]
    wanted = [expected(net, given, dtype=dtype) for dtype, given in calls]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    tightfit.fit(net, card=card, vram=whole + 400 * 1024)
    sizes = []
    for (_, given), value in zip(calls, wanted, strict=True):
        for _ in range(2):
            assert torch.equal(net(given).cpu(), value)
        sizes.append(tightfit.fitted(net).session.scratch_bytes)
        assert tightfit.fitted(net).plan.stages[0].ledger.lines["conversion"].bytes == sizes[-1]
    assert sizes[1] == 2 * sizes[0]
    assert "float32" in tightfit.fitted(net).explain()
    assert (card.read().peak_allocated or 0) <= whole + 400 * 1024
    tightfit.unfit(net)
    assert_back(card)
    after = net.state_dict()
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert after[name].dtype == value.dtype
        assert torch.equal(after[name].float(), value.float())


class Encoder(nn.Module):
    """Takes whole numbers, and casts what it feeds a layer to the dtype of its weight, as T5."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 128, bias=False), nn.Linear(128, 64, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.table(ids))
        hidden = self.up(x).relu().to(self.down.weight.dtype)
        result: torch.Tensor = self.down(hidden)
        return result


def test_where_no_floats_come_in_the_other_weights_tell() -> None:
    """A text encoder whose norms are in float16 computes in that."""
    torch.manual_seed(2)
    net = Encoder().eval().half()
    store(net.up, "tensor")
    store(net.down, "none")
    net.table.weight.requires_grad_(False).data = net.table.weight.data.to(torch.float8_e4m3fn)
    ids = torch.arange(7).view(1, 7)
    wanted = expected(net, ids, dtype=torch.float16)
    card = virtual(64 * 1024)
    tightfit.fit(net, card=card, example=(ids,))
    result = net(ids).cpu()
    assert result.dtype == torch.float16
    assert torch.equal(result, wanted)
    assert net.down.weight.dtype == torch.float8_e4m3fn
    tightfit.unfit(net)
    assert_back(card)


@pytest.mark.parametrize("inference", [False, True])
def test_a_layer_may_be_called_by_itself(inference: bool) -> None:
    """Outside of the module that is fitted, and in inference mode."""
    net = network((0,), width=WIDTH)
    x = torch.randn(2, WIDTH)
    right = meant(net, torch.float32)
    for mode in ("none", "auto"):
        card = virtual(64 * MIB)
        wanted = right.first.to(card.device)(x.to(card.device)).cpu()
        right.to("cpu")
        tightfit.fit(net, card=card, mode=mode, example=(x,))
        with torch.inference_mode(inference), torch.no_grad():
            first = net(x)
            assert torch.equal(net.first(x.to(card.device)).cpu(), wanted)
            assert torch.equal(net(x), first)
        tightfit.unfit(net)


def test_a_scale_of_another_shape_is_refused_by_name() -> None:
    """It would be multiplied with the wrong values."""
    net = nn.Sequential(nn.Linear(200, 300)).eval()
    store(net[0], "rows")
    net[0].weight_scale = torch.rand(200)
    with pytest.raises(UsageError, match=r"0\.weight_scale.*float32\[200\].*\[300, 200\]"):
        tightfit.fit(net, card=virtual(MIB))


class Own(nn.Linear):
    """Multiplies in a way of its own."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        assert self.weight.dtype == torch.float8_e4m3fn
        scale: Any = self.weight_scale
        return nn.functional.linear(input, self.weight.float()) * scale


def test_a_layer_with_a_way_of_its_own_has_what_is_stored() -> None:
    """It is moved, and nothing else."""
    torch.manual_seed(4)
    net = nn.Sequential(Own(64, 64, bias=False), Own(64, 64, bias=False))
    for layer in net:
        store(layer, "rows")
    x = torch.randn(2, 64)
    with torch.no_grad():
        wanted = net(x)
    card = virtual(MIB)
    tightfit.fit(net, card=card, mode="none", example=(x,))
    torch.testing.assert_close(net(x).cpu(), wanted)
    assert tightfit.fitted(net).session.scratch_bytes == 0
    tightfit.unfit(net)


def test_a_call_that_runs_out_of_memory_is_made_again() -> None:
    """With the same numbers, and the books right afterwards."""
    net, x = network(KINDS, width=WIDTH), torch.randn(2, WIDTH)
    wanted = expected(net, x, dtype=torch.float32)
    card = virtual(3 * weight_bytes(net))
    tightfit.fit(net, card=card, example=(x,))
    for at in range(4):
        with oom_after(card, at):
            assert torch.equal(net(x).cpu(), wanted)
    assert tightfit.fitted(net).notes
    tightfit.unfit(net)
    assert_back(card)
