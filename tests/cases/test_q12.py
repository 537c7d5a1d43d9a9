"""Q12: GGUF, whose packed shape is not the logical one, and whose block types nobody knows all of.

Q8_0 [64, 96], F16 [100, 37], Q4_0 [32, 64], and one block type that the reader lacks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from diffusers.models.model_loading_utils import load_gguf_checkpoint
from diffusers.quantizers.gguf.utils import GGUFLinear, GGUFParameter, dequantize_gguf_tensor
from torch import nn

from tests.streaming import Case
from tightfit import fit, unfit
from tightfit.allocators import ALIGNMENT, round_up
from tightfit.api.fitting import fitted
from tightfit.card import open_card
from tightfit.errors import InputError, UsageError
from tightfit.place.streaming.streamed import streamed
from tightfit.run.fitting.need import Call, need_of
from tightfit.weigh.files.headers import read_header
from tightfit.weigh.module_blocks import blocks_of

Q8_0, Q4_0, F16 = (gguf.GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0", "F16"))
TENSORS = {"eight": (Q8_0, (64, 96)), "odd": (F16, (100, 37)), "four": (Q4_0, (32, 64))}
PACKED = {"eight": 64 * 3 * 34, "odd": 100 * 37 * 2, "four": 32 * 2 * 18}
UNKNOWN = 77


class Net(nn.Module):
    """Every layer as diffusers makes it for GGUF, without biases."""

    def __init__(self) -> None:
        super().__init__()
        for name, (_, (rows, columns)) in TENSORS.items():
            setattr(self, name, GGUFLinear(columns, rows, compute_dtype=torch.float32))

    def forward(self, wide: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
        """[B, 96] and [B, 37] to [B, 132]."""
        found: Any = self.four(torch.relu(self.eight(wide)))
        return torch.cat([found, self.odd(odd)], dim=-1)


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray[Any, Any]]]:
    """A file of the three tensors, and the values by gguf's own unpacking."""
    path = tmp_path / "three.gguf"
    draw = np.random.default_rng(12)
    writer = gguf.GGUFWriter(str(path), "test")
    values = {}
    for name, (kind, shape) in TENSORS.items():
        packed = gguf.quants.quantize(draw.normal(size=shape).astype(np.float32), kind)
        values[name] = gguf.quants.dequantize(packed, kind)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, values


@pytest.fixture
def module(file: tuple[Path, dict[str, np.ndarray[Any, Any]]]) -> Net:
    """The file's tensors, as diffusers reads them."""
    net = Net()
    for name, tensor in load_gguf_checkpoint(str(file[0]), return_tensors=True).items():
        layer: Any = getattr(net, name.partition(".")[0])
        kept = isinstance(tensor, nn.Parameter)
        layer.weight = tensor if kept else nn.Parameter(tensor, requires_grad=False)
    return net.eval()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(12)
    return torch.randn(2, 96), torch.randn(2, 37)


@torch.no_grad()
def test_q12_known_types_equal_the_reference(
    module: Net, file: tuple[Path, dict[str, np.ndarray[Any, Any]]]
) -> None:
    """Streamed and resident: the bits of the module by itself, of gguf's own values as halves."""
    wanted = module(*inputs())
    for name, layer in module.named_children():
        reference = torch.from_numpy(file[1][name]).float()
        found = dequantize_gguf_tensor(layer.weight).float()  # in half precision
        torch.testing.assert_close(found, reference, rtol=2**-10, atol=1e-7)
    weights = list(module.parameters())
    case = Case.of(module, lambda: module(*inputs()))
    for stays in (lambda at: False, lambda at: at == 1, lambda at: True):
        residency = case.everything("leaf", 2, stays)
        card = open_card("cpu")
        with streamed(module, card, residency, case.blocks, order=case.order) as session:
            for _ in range(3):
                assert torch.equal(module(*inputs()), wanted)
            shown: Any = module.eight.weight
            assert type(shown) is GGUFParameter
            assert shown.quant_type is Q8_0
            away = not any(shown.as_tensor().stride())
            assert away == (session.resident_bytes < sum(PACKED.values()))
    assert all(one is other for one, other in zip(weights, module.parameters(), strict=True))
    assert torch.equal(module(*inputs()), wanted)


@torch.no_grad()
def test_q12_fit_has_the_same_bits(module: Net) -> None:
    """By the door that people use, with everything streamed and with everything there."""
    wanted = module(*inputs())
    for mode in ("none", "auto"):
        fit(module, card="cpu", vram="1MiB", mode=mode, example=inputs())
        streams = bool(fitted(module).session.residency.streamed)
        assert streams == (mode == "none")
        assert torch.equal(module(*inputs()), wanted)
        unfit(module)
    assert torch.equal(module(*inputs()), wanted)


def test_q12_an_unknown_type_is_named_before_anything_is_loaded(
    file: tuple[Path, dict[str, np.ndarray[Any, Any]]], tmp_path: Path
) -> None:
    """By the header alone: of this file there is nothing else."""
    content = file[0].read_bytes()
    header = read_header(file[0])
    assert {each.name: each.stored_bytes for each in header.tensors} == {
        f"{name}.weight": size for name, size in PACKED.items()
    }
    name = b"four.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8  # behind the number of axes and two of them
    assert int.from_bytes(content[at : at + 4], "little") == Q4_0
    end = content.index(name) + len(name) + 4 + 2 * 8 + 4 + 8
    path = tmp_path / "unknown.gguf"
    path.write_bytes(content[:at] + UNKNOWN.to_bytes(4, "little") + content[at + 4 : end])
    with pytest.raises(InputError, match=r"77 \(of tensor `four\.weight`\)"):
        read_header(path)


def test_q12_a_type_that_the_layers_cannot_unpack_is_named_before_anything_moves(
    module: Net,
) -> None:
    """Where gguf knows how large its blocks are, but diffusers not what they stand for."""
    kind = gguf.GGMLQuantizationType.TQ1_0
    size = gguf.GGML_QUANT_SIZES[kind][1]
    packed = torch.zeros(32, size, dtype=torch.uint8)
    layer: Any = module.four
    layer.weight = GGUFParameter(packed, quant_type=kind)
    card = open_card("virtual:1MiB")
    before = card.read().allocated
    with pytest.raises(UsageError, match=r"`four\.weight` is stored as GGUF's TQ1_0"):
        fit(module, card=card)
    assert card.read().allocated == before
    assert layer.weight.device.type == "cpu"


@torch.no_grad()
def test_q12_packed_bytes_and_one_dequantised_tensor_are_planned(module: Net) -> None:
    """Weights as they are stored; what a layer makes of one is in the need of the call."""
    found = blocks_of(module)
    largest = 64 * 96 * 4
    assert found.stored_bytes == sum(PACKED.values())
    assert found.converted_bytes == largest
    assert found.elements == sum(rows * columns for _, (rows, columns) in TENSORS.values())
    case = Case.of(module, lambda: module(*inputs()))
    assert sum(unit.bytes for unit in case.units) == sum(
        round_up(size, ALIGNMENT) for size in PACKED.values()
    )
    need = need_of(module, Call("forward", inputs(), {}), open_card("virtual:1MiB"))
    assert need.problem is None
    assert need.allocated is not None
    transient = 64 * 96 * 2  # in half precision, on its way to float32
    assert largest + transient <= need.allocated < largest + transient + 8 * 1024
