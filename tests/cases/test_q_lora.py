"""Group Q: LoRA on weights that stay, stream, or change places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tightfit
from tests.cases.common import assert_back, virtual
from tests.loras import LAYERS, bytes_of, flux, given, inputs, load, lora, wanted
from tightfit.errors import InputError, MemoryShortage, UsageError
from tightfit.units import KIB, MIB

pytestmark = pytest.mark.filterwarnings(r"ignore::UserWarning:peft\..*")  # of a second adapter
SHARES = (1.0, 0.4, 0.0, 0.7, 1.0)
"""Of the weights, what is to stay on the card in each run."""


def share_of(module: Any) -> float:
    """Of its weights, what is on the card now."""
    return float(tightfit.fitted(module).session.resident_bytes / bytes_of(module))


def allow(module: Any, budget: int) -> None:
    """From here on it may use so much of the card."""
    fitted = tightfit.fitted(module)
    terms = replace(fitted.terms, supply=replace(fitted.terms.supply, budget=budget))
    fitted.terms = fitted._kept.terms = terms


def least(module: Any, **more: Any) -> int:
    """The budget, in steps, below which a call is refused."""
    for budget in range(64 * KIB, 4 * MIB, 48 * KIB):
        allow(module, budget)
        try:
            given(module, **more)
        except MemoryShortage:
            continue
        return budget
    raise AssertionError("no budget is enough")


@pytest.mark.parametrize("pack", ["off", "on"])
def test_q10_a_lora_is_neither_lost_nor_doubled_when_residency_changes(pack: str) -> None:
    """With a strength given to each call, and calls that are cancelled or refused; then removed."""
    dtype = torch.bfloat16 if pack == "on" else torch.float32
    more = {"joint_attention_kwargs": {"scale": 0.7}}
    base = wanted(flux(dtype))
    expected = wanted(flux(dtype), lambda whole: load(whole, 5, "a"), **more)
    assert not torch.equal(base, expected)
    module, card = flux(dtype), virtual("64MiB")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    tightfit.fit(module, card=card, pack=pack, example=inputs(dtype))
    load(module, 5, "a")
    low, cancelled, shares = least(module, **more), [], []

    def cancel(*_: object) -> None:
        if cancelled:
            raise cancelled.pop()

    handle = module.single_transformer_blocks[1].register_forward_pre_hook(cancel)
    for run, share in enumerate(SHARES, start=1):
        allow(module, low + int(share * bytes_of(module)))
        if run == 3:
            cancelled.append(KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                given(module, **more)
        for _ in range(16):  # what has become free is used after a few calls
            assert torch.equal(given(module, **more), expected)
            if abs(share_of(module) - share) < 0.15:
                break
        shares.append(share_of(module))
    handle.remove()
    assert shares == pytest.approx(SHARES, abs=0.15)
    module.unload_lora()
    assert torch.equal(given(module), base)
    tightfit.unfit(module)
    assert_back(card)
    after = module.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def transposed() -> dict[str, torch.Tensor]:
    """A LoRA with one factor transposed, and a key that no layer has."""
    state = lora(flux(), 7)
    key = f"transformer.{LAYERS[1]}.lora_A.weight"
    state[key] = state[key].t().contiguous()
    state["transformer.blocks.9.attn.lora_A.weight"] = torch.zeros(4, 64)
    state["transformer.blocks.9.attn.lora_B.weight"] = torch.zeros(64, 4)
    return state


@pytest.mark.parametrize("source", ["state dict", "file", "folder"])
def test_q11_a_lora_of_the_wrong_shape_is_refused_before_it_is_loaded(
    source: str, tmp_path: Path
) -> None:
    """Keys and shapes are named, not a byte of the card changes, and another LoRA can be loaded."""
    given_as: Any = transposed()
    if source != "state dict":
        save_file(given_as, tmp_path / "pytorch_lora_weights.safetensors")
        given_as = tmp_path if source == "folder" else next(tmp_path.iterdir())
    module, card = flux(), virtual("64MiB")
    tightfit.fit(module, card=card, vram="900KiB", example=inputs())
    base, held = given(module), card.read()
    names, changes = set(dict(module.named_modules())), len(tightfit.fitted(module).changes)
    with pytest.raises(InputError) as refused:
        module.load_lora_adapter(given_as, adapter_name="wrong")
    assert f"`{LAYERS[1]}.lora_A.weight` is [64, 4]" in str(refused.value)
    assert f"`{LAYERS[1]}` takes [4, 64]" in str(refused.value)
    assert "`blocks.9.attn.lora_A.weight` [4, 64] is for a layer" in str(refused.value)
    assert card.read() == held
    assert set(dict(module.named_modules())) == names
    assert len(tightfit.fitted(module).changes) == changes
    assert torch.equal(given(module), base)
    load(module, 5, "right")
    assert torch.equal(given(module), wanted(flux(), lambda whole: load(whole, 5, "right")))
    tightfit.unfit(module)
    assert_back(card)


def test_q11_what_the_library_refuses_late_leaves_the_module_as_it_was() -> None:
    """Only its converter can read an old spelling; the numbers are the same afterwards."""
    old = {
        key.replace("lora_A", "lora.down").replace("lora_B", "lora.up"): value
        for key, value in lora(flux(), 7).items()
    }
    key = f"transformer.{LAYERS[1]}.lora.down.weight"
    old[key] = old[key].t().contiguous()
    module, card = flux(), virtual("64MiB")
    tightfit.fit(module, card=card, vram="900KiB", example=inputs())
    base, held = given(module), card.read().allocated
    load(module, 5, "right")
    expected = given(module)
    with pytest.raises(RuntimeError, match="size mismatch"):
        module.load_lora_adapter(old, adapter_name="wrong")
    assert torch.equal(given(module), expected)
    module.unload_lora()
    assert torch.equal(given(module), base)
    assert card.read().allocated == held
    tightfit.unfit(module)
    assert_back(card)


def in_fp8(*, scaled: bool) -> tuple[Any, Any]:
    """A bf16 network whose layers with a LoRA are stored in fp8, and the same dequantised."""
    model, meant = flux(torch.bfloat16), flux(torch.bfloat16)
    for path in LAYERS:
        layer, other = model.get_submodule(path), meant.get_submodule(path)
        weight = layer.weight.float()
        scale = weight.abs().max() / 448 if scaled else torch.tensor(1.0)
        stored = (weight / scale).to(torch.float8_e4m3fn)
        layer.weight = nn.Parameter(stored, requires_grad=False)
        other.weight = nn.Parameter((stored.float() * scale).bfloat16(), requires_grad=False)
        if scaled:
            layer.weight_scale = nn.Parameter(scale, requires_grad=False)
    return model, meant


@pytest.mark.parametrize("scaled", [False, True])
def test_q08_a_lora_on_fp8_weights_is_added_in_what_is_computed_in(scaled: bool) -> None:
    """Resident and streamed alike, as on the dequantised network, with its own values unrounded."""
    _, meant = in_fp8(scaled=scaled)
    base, expected = wanted(meant), wanted(meant, lambda whole: load(whole, 5, "a"))
    assert not torch.equal(base, expected)
    seen = []
    for budget in ("64MiB", "500KiB"):
        (module, _), card = in_fp8(scaled=scaled), virtual("64MiB")
        tightfit.fit(module, card=card, vram=budget, example=inputs(torch.bfloat16))
        plain = given(module)
        load(module, 5, "a")
        layer = module.get_submodule(LAYERS[0])
        assert layer.base_layer.weight.dtype == torch.float8_e4m3fn
        assert layer.lora_A["a"].weight.dtype == torch.bfloat16
        seen.append(given(module))
        with pytest.raises(UsageError, match=r"`fuse_lora` cannot write .* float8_e4m3fn"):
            module.fuse_lora()
        assert torch.equal(given(module), seen[-1])
        module.unload_lora()
        assert torch.equal(given(module), plain)
        tightfit.unfit(module)
        assert_back(card)
    assert torch.equal(*seen)
    torch.testing.assert_close(seen[0], expected, rtol=2**-7, atol=2**-7)
