"""load_weights: what of a file goes where, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tightfit
from tests.cases.common import assert_back, virtual
from tests.place.converting.nets import meant, network
from tightfit.errors import InputError, UsageError
from tightfit.units import MIB
from tightfit.weigh.conversions import Conversions

FP8 = torch.float8_e4m3fn
WIDTH = 64
Tensors = dict[str, torch.Tensor]


class Small(nn.Module):
    """Two tied layers, a norm that stays as it is, and a table that no file has."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.register_buffer("table", torch.arange(WIDTH, device="cpu").float(), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.down.weight = self.up.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(self.norm(self.up(x))) + self.table.to(x.dtype)
        return result


def tensors() -> Tensors:
    """As a file has them."""
    torch.manual_seed(6)
    return {
        "up.weight": (torch.randn(WIDTH, WIDTH) * 40).to(FP8),
        "up.bias": torch.randn(WIDTH).to(torch.bfloat16),
        "up.weight_scale": torch.rand(WIDTH, 1) / 100,
        "norm.weight": torch.randn(WIDTH),
        "norm.bias": torch.randn(WIDTH),
        "count": torch.tensor(3),
    }


def saved(path: Path, given: Tensors) -> Path:
    file = path / "model.safetensors"
    save_file(given, file)
    return file


def equal(net: nn.Module, given: Tensors) -> bool:
    """Whether the state of `net` is what was given, names and dtypes too."""
    state = net.state_dict()
    return all(
        state[name].dtype == value.dtype and torch.equal(state[name].float(), value.float())
        for name, value in given.items()
    )


def test_weights_keep_what_they_are_stored_in_and_their_ties(tmp_path: Path) -> None:
    """The state of the module is the file's, under the file's names; parameters stay the same."""
    given = tensors()
    net = Small()
    before = dict(net.named_parameters())
    assert tightfit.load_weights(net, saved(tmp_path, given)) is net
    assert equal(net, given)
    assert net.down.weight is net.up.weight
    assert all(value is before[name] for name, value in net.named_parameters())
    x = torch.randn(2, WIDTH)
    card, free = virtual(MIB), virtual(MIB)
    wanted = meant(net, torch.float32).to(free.device)(x.to(free.device)).cpu()
    for mode in ("none", "high"):
        tightfit.fit(net, card=card, mode=mode, example=(x,))
        assert torch.equal(net(x).cpu(), wanted)
        assert equal(net, given)
        tightfit.unfit(net)
        assert equal(net, given)
    assert_back(card)


def test_a_second_file_takes_the_place_of_the_first_with_its_scales(tmp_path: Path) -> None:
    """A scale that is left over would be multiplied by."""
    net = tightfit.load_weights(Small(), saved(tmp_path, tensors()))
    given = tensors()
    del given["up.weight_scale"]
    tightfit.load_weights(net, saved(tmp_path, given))
    assert equal(net, given)
    assert "up.weight_scale" not in net.state_dict()


def test_what_is_only_for_multiplying_in_eight_bits_is_left(tmp_path: Path) -> None:
    """Scales of activations and marks change no value of a weight."""
    form = json.dumps({"format": "float8_e4m3fn", "full_precision_matrix_mult": True})
    extra = {
        "up.input_scale": torch.tensor(2.0),
        "scaled_fp8": torch.zeros(2).to(FP8),
        "up.comfy_quant": torch.tensor(list(form.encode()), dtype=torch.uint8),
    }
    net = tightfit.load_weights(Small(), saved(tmp_path, tensors() | extra))
    assert equal(net, tensors())
    assert not extra.keys() & net.state_dict().keys()


def changed(name: str, value: torch.Tensor | None) -> Callable[[Tensors], None]:
    def change(given: Tensors) -> None:
        given.pop(name, None)
        if value is not None:
            given[name] = value

    return change


def mark(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


REFUSED: dict[str, tuple[Callable[[Tensors], None], str]] = {
    "unknown": (changed("up.weight_scl", torch.ones(1)), "`up.weight_scl`"),
    "a second scale": (changed("up.scale_weight", torch.tensor(1.0)), "`up.weight`.*scale_weight"),
    "a scale of no weight": (changed("norm.scale", torch.tensor(1.0)), "`norm.scale`"),
    "a scale of what needs none": (
        changed("norm.weight_scale", torch.tensor(1.0)),
        "`norm.weight_scale`",
    ),
    "a scale of integers": (
        changed("up.weight_scale", torch.ones(WIDTH, dtype=torch.int32)),
        "`up.weight_scale`",
    ),
    "a scale of columns": (changed("up.weight_scale", torch.ones(1, WIDTH)), "`up.weight_scale`"),
    "a second factor": (changed("up.weight_scale_2", torch.tensor(1.0)), "`up.weight_scale_2`"),
    "another shape": (changed("up.bias", torch.ones(3)), "`up.bias`"),
    "two in a byte": (
        changed("up.weight", torch.ones(WIDTH, WIDTH // 2, dtype=torch.uint8)),
        "`up.weight`",
    ),
    "integers without a scale": (
        changed("norm.weight", torch.ones(WIDTH, dtype=torch.int8)),
        "`norm.weight`",
    ),
    "missing": (changed("norm.bias", None), "`norm.bias`"),
    "another format": (changed("up.comfy_quant", mark('{"format": "mxfp8"}')), "mxfp8"),
    "no format": (changed("up.comfy_quant", mark("[]")), "`up.comfy_quant`"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_right_is_refused_by_name_and_nothing_is_loaded(
    tmp_path: Path, why: str
) -> None:
    """Before the first tensor is given to the module."""
    change, told = REFUSED[why]
    given = tensors()
    change(given)
    net = Small()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(InputError, match=told):
        tightfit.load_weights(net, saved(tmp_path, given))
    assert equal(net, before)


def test_int8_with_a_scale_is_taken(tmp_path: Path) -> None:
    """It stands for values, as fp8 does."""
    given = tensors()
    given["up.weight"] = torch.randint(-128, 128, (WIDTH, WIDTH), dtype=torch.int8)
    net = tightfit.load_weights(Small(), saved(tmp_path, given))
    assert equal(net, given)
    assert [layer.name for layer in Conversions.of(net).layers] == ["up", "down"]


def test_a_buffer_without_values_is_refused_by_name(tmp_path: Path) -> None:
    """It is in no file, and a module on the meta device has it not."""
    with torch.device("meta"):
        net = Small()
    net.table = torch.empty(WIDTH, device="meta")
    with pytest.raises(InputError, match="`table`"):
        tightfit.load_weights(net, saved(tmp_path, tensors()))


def test_a_fitted_module_is_refused(tmp_path: Path) -> None:
    """Its weights are elsewhere."""
    net = tightfit.load_weights(Small(), saved(tmp_path, tensors()))
    tightfit.fit(net, card=virtual(MIB))
    with pytest.raises(UsageError, match="unfit"):
        tightfit.load_weights(net, tmp_path / "model.safetensors")
    tightfit.unfit(net)


def test_a_folder_of_shards_and_what_was_packed_are_taken(tmp_path: Path) -> None:
    """As diffusers saves them, and as `tightfit.pack` makes them smaller."""
    net: Any = network((0, 3), width=256, dtype=torch.bfloat16)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    names = sorted(state)
    folder = tmp_path / "model"
    folder.mkdir()
    places = {}
    for at in range(2):
        file = f"diffusion_pytorch_model-{at + 1:05}-of-00002.safetensors"
        save_file({name: state[name] for name in names[at::2]}, folder / file)
        places |= dict.fromkeys(names[at::2], file)
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    tightfit.pack(folder, tmp_path / "packed")
    for path in (folder, index, tmp_path / "packed"):
        again = network((0, 3), width=256, dtype=torch.bfloat16)
        for value in again.parameters():
            value.data.zero_()
        tightfit.load_weights(again, path)
        assert equal(again, state)
