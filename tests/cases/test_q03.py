"""Q03, scales of fp8 weights: the two spellings in the wild, and one that nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tightfit
from tests.cases.common import assert_back, virtual
from tightfit.errors import InputError
from tightfit.units import MIB
from tightfit.weigh import weight_bytes

FP8 = torch.float8_e4m3fn
WIDTH = 512
SCALE = 1e-3


def network(device: str = "meta") -> nn.Sequential:
    """Two layers, as a loader would make them."""
    with torch.device(device):
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).eval()


def stored(spelling: str) -> dict[str, torch.Tensor]:
    """Layers in fp8 whose values are a thousand times too large."""
    torch.manual_seed(3)
    tensors: dict[str, torch.Tensor] = {}
    for layer in ("0", "2"):
        tensors[f"{layer}.weight"] = (torch.randn(WIDTH, WIDTH) * 40).to(FP8)
        tensors[f"{layer}.bias"] = torch.randn(WIDTH).to(torch.bfloat16)
        tensors[f"{layer}.{spelling}"] = torch.tensor(SCALE)
    return tensors


def dequantised(tensors: dict[str, torch.Tensor]) -> nn.Sequential:
    """The same network in float32, with the values that are meant."""
    net = network("cpu")
    for at in (0, 2):
        layer = net[at]
        assert isinstance(layer, nn.Linear)
        layer.weight.data = tensors[f"{at}.weight"].float() * SCALE
        layer.bias.data = tensors[f"{at}.bias"].float()
    return net.requires_grad_(False)


@pytest.mark.parametrize("spelling", ["scale_weight", "weight_scale"])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_q03_both_spellings_equal_the_dequantised_reference(
    tmp_path: Path, spelling: str, device: str
) -> None:
    """A scale that is not read makes a white picture; here it is multiplied by, whatever its name.

    With all on the card, and with half of it streamed.
    """
    tensors = stored(spelling)
    save_file(tensors, tmp_path / "model.safetensors")
    x = torch.randn(4, WIDTH)
    free = virtual(64 * MIB)
    expected = dequantised(tensors).to(free.device)(x.to(free.device)).cpu()
    for budget in (16 * MIB, 2 * MIB):
        net = tightfit.load_weights(network(device), tmp_path / "model.safetensors")
        assert weight_bytes(net) < 2 * WIDTH * WIDTH + 8 * WIDTH
        card = virtual(budget)
        tightfit.fit(net, card=card, example=(x,))
        assert torch.equal(net(x).cpu(), expected)
        assert (card.read().peak_allocated or 0) <= budget
        tightfit.unfit(net)
        assert_back(card)


def test_q03_an_unknown_spelling_is_refused_by_name(tmp_path: Path) -> None:
    """Nothing is loaded: values without their scale would be wrong, and nobody would be told."""
    save_file(stored("weight_factor"), tmp_path / "model.safetensors")
    net = network("cpu")
    before = [parameter.clone() for parameter in net.parameters()]
    with pytest.raises(InputError, match=r"`0\.weight_factor`"):
        tightfit.load_weights(net, tmp_path / "model.safetensors")
    assert all(map(torch.equal, net.parameters(), before))
