"""`fit` and LoRAs that come, change, are fused and go: the numbers are those of a large card."""

from __future__ import annotations

import _thread
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.cases.common import assert_back, virtual
from tests.loras import LAYERS, bytes_of, flux, given, inputs, load, lora, wanted
from tightfit.card.virtual.card import VirtualCard
from tightfit.card.virtual.faults import Planned
from tightfit.errors import MemoryShortage, UsageError
from tightfit.units import KIB, MIB

pytestmark = pytest.mark.filterwarnings(r"ignore::UserWarning:peft\..*")  # of a second adapter
BF16 = torch.bfloat16


def fitted(model: Any, share: float, **kwargs: Any) -> VirtualCard:
    """The card on which `model` is, with room for such a share of its weights beside a call."""
    card = virtual(64 * MIB)
    budget = int(share * bytes_of(model)) + 400 * KIB
    tightfit.fit(model, card=card, vram=budget, example=inputs(model.dtype), **kwargs)
    return card


def assert_given_back(model: Any, card: VirtualCard) -> None:
    """Everything that is the module's is on the host, and the card is empty."""
    tightfit.unfit(model)
    assert {held.device.type for held in model.state_dict().values()} == {"cpu"}
    assert not any(value.isnan().any() for value in model.state_dict().values())
    assert_back(card)


def two(model: Any) -> None:
    load(model, 5, "a")
    load(model, 6, "b", rank=8)
    model.set_adapters(["a", "b"], [0.5, 0.7])


def fused(model: Any) -> None:
    two(model)
    model.fuse_lora(lora_scale=0.9)


STEPS: list[tuple[str, Callable[[Any], object]]] = [
    ("one", lambda model: load(model, 5, "a")),
    ("a second", lambda model: load(model, 6, "b", rank=8)),
    ("both", lambda model: model.set_adapters(["a", "b"], [0.5, 0.7])),
    ("none", lambda model: model.disable_adapters()),
    (
        "another strength",
        lambda model: (model.enable_adapters(), model.set_adapters(["a", "b"], [0.25, -1.0])),
    ),
    ("fused", lambda model: model.fuse_lora(lora_scale=0.9)),
    ("unfused", lambda model: model.unfuse_lora()),
    ("the second alone", lambda model: model.delete_adapters("a")),
    ("the base", lambda model: model.unload_lora()),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "pack", "shares"), [(torch.float32, "off", (0.1, 0.6)), (BF16, "on", (0.2,))]
)
def test_whatever_is_done_with_loras_gives_the_bits_of_a_large_card(
    dtype: torch.dtype, pack: str, shares: tuple[float, ...]
) -> None:
    """Step by step with all weights on a large card, and fitted at small budgets, within them."""
    expected, seen = [], flux(dtype)
    for _, step in STEPS:
        step(seen)
        expected.append(wanted(seen))
    assert len({tuple(value.flatten().tolist()) for value in expected}) >= len(STEPS) - 1
    for share in shares:
        model = flux(dtype)
        card = fitted(model, share, pack=pack)
        budget = tightfit.fitted(model).terms.supply.budget
        for (name, step), value in zip(STEPS, expected, strict=True):
            step(model)
            assert torch.equal(given(model), value), name
        assert (card.read().peak_reserved or 0) <= budget
        assert_given_back(model, card)
        for name, value in seen.state_dict().items():
            assert torch.equal(model.state_dict()[name], value), name


def test_loras_that_were_there_before_are_used_and_stay() -> None:
    """On the module as the user gave it; `unfit` gives it back with them."""
    model = flux()
    two(model)
    expected, before = wanted(model), copy.deepcopy(model.state_dict())
    card = fitted(model, 0.1)
    assert torch.equal(given(model), expected)
    assert_given_back(model, card)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("share", [0.1, 2])
def test_a_lora_that_is_injected_by_peft_itself_is_brought_in_at_the_next_call(
    share: float,
) -> None:
    """It lies on the card then, in no plan; from that call on it is planned, and `unfit` takes it
    to the host."""
    from peft import LoraConfig, inject_adapter_in_model

    def inject(whole: Any) -> None:
        torch.manual_seed(3)
        targets = [path.rpartition(".")[2] for path in LAYERS]
        config = LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
        inject_adapter_in_model(config, whole)

    expected = wanted(flux(), inject)
    model = flux()
    card = fitted(model, share)
    base = given(model)
    inject(model)
    for _ in range(2):
        assert torch.equal(given(model), expected)
    pieces = tightfit.fitted(model).session.residency.pieces
    assert sum(piece.bytes for piece in pieces) >= bytes_of(model)
    model.delete_adapters("default")
    assert torch.equal(given(model), base)
    assert_given_back(model, card)


def test_adapters_that_are_made_of_weights_find_them() -> None:
    """DoRA takes the norms of weights when it is made, and reaches for them in each call."""
    from peft import LoraConfig

    def add(whole: Any) -> None:
        torch.manual_seed(3)
        targets = [path.rpartition(".")[2] for path in LAYERS]
        config = LoraConfig(r=4, target_modules=targets, init_lora_weights=False, use_dora=True)
        whole.add_adapter(config)

    expected = wanted(flux(), add)
    model = flux()
    card = fitted(model, 0.4)
    add(model)
    assert torch.equal(given(model), expected)
    assert_given_back(model, card)


def test_foreign_uses_that_come_with_an_adapter_are_seen_when_it_is_enabled() -> None:
    """The call that the weights were placed for had it disabled."""
    from peft import LoraConfig

    model = flux()
    targets = [path.rpartition(".")[2] for path in LAYERS]
    config = LoraConfig(r=4, target_modules=targets, init_lora_weights=False, use_dora=True)
    model.add_adapter(config)
    expected = wanted(model)
    model.disable_adapters()
    card = fitted(model, 0.4)
    given(model)
    model.enable_adapters()
    assert torch.equal(given(model), expected)
    assert_given_back(model, card)


def test_layers_that_are_fused_one_by_one_are_too() -> None:
    """As pipelines do with text encoders: the weights go to the host once, and come back once."""

    def merge(whole: Any) -> None:
        load(whole, 5, "a")
        for path in LAYERS[:3]:
            whole.get_submodule(path).merge()

    expected = wanted(flux(), merge)
    model = flux()
    card = fitted(model, 0.6)
    load(model, 5, "a")
    changes = len(tightfit.fitted(model).changes)
    for path in LAYERS[:3]:
        model.get_submodule(path).merge()
    assert torch.equal(given(model), expected)
    assert len(tightfit.fitted(model).changes) == changes + 1
    assert_given_back(model, card)


def test_what_was_fused_unseen_is_undone_and_said() -> None:
    """Layers that came and were fused with no call in between: they were written to the card."""
    from peft import LoraConfig, inject_adapter_in_model

    def inject(whole: Any) -> None:
        torch.manual_seed(3)
        config = LoraConfig(r=4, target_modules=["to_q"], init_lora_weights=False)
        inject_adapter_in_model(config, whole)

    expected = wanted(flux(), inject)
    model = flux()
    card = fitted(model, 2)
    inject(model)
    model.transformer_blocks[0].attn.to_q.merge()
    with pytest.raises(UsageError, match=r"to_q` was fused .*undone"):
        given(model)
    assert torch.equal(given(model), expected)
    assert_given_back(model, card)


def test_parameters_that_are_made_of_weights_that_are_away_are_refused() -> None:
    """They would be NaN for good; by their path, until they are gone."""
    model = flux()
    card = fitted(model, 0.1)
    base = given(model)
    layer = model.single_transformer_blocks[1].proj_mlp
    layer.twice = nn.Parameter(2 * layer.weight.detach(), requires_grad=False)
    for use in (given, lambda model: load(model, 5, "a"), given):
        with pytest.raises(UsageError, match=r"proj_mlp.twice` came .* NaN"):
            use(model)
    del layer.twice
    assert torch.equal(given(model), base)
    assert_given_back(model, card)


@pytest.mark.parametrize("after", [0, 60])
def test_a_call_with_a_strength_that_is_made_again_has_that_strength(after: int) -> None:
    """The scale of a call is multiplied in and out again, however the call ends."""
    more = {"joint_attention_kwargs": {"scale": 0.3}}
    model = flux()
    two(model)
    expected, plain, without = wanted(model, **more), wanted(model), wanted(flux())
    card = fitted(model, 2)
    card.faults.planned.append(Planned(after))
    for _ in range(3):
        assert torch.equal(given(model, **more), expected)
    assert torch.equal(given(model), plain)
    strengths = [dict(layer.scaling) for layer in map(model.get_submodule, LAYERS)]
    assert torch.equal(given(model, joint_attention_kwargs={"scale": 0.0}), without)
    assert torch.equal(given(model), plain)
    assert [dict(layer.scaling) for layer in map(model.get_submodule, LAYERS)] == strengths
    assert_given_back(model, card)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_load_that_is_stopped_leaves_a_module_that_can_be_called(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was loaded before is there as it was."""
    import peft

    def stop(*_: object, **__: object) -> None:
        raise error

    model = flux()
    card = fitted(model, 0.6)
    load(model, 5, "a")
    expected = given(model)
    with monkeypatch.context() as patch:
        patch.setattr(peft, "set_peft_model_state_dict", stop)
        with pytest.raises(error):
            load(model, 6, "b")
    if error is KeyboardInterrupt:  # the library tidies up after errors alone
        model.delete_adapters("b")
        model.set_adapters("a")
    assert torch.equal(given(model), expected)
    assert_given_back(model, card)


def test_an_interrupt_counts_when_fusing_is_done() -> None:
    """Else some layers would be fused and others not, and one of them half."""
    model = flux()
    card = fitted(model, 0.6)
    two(model)
    expected = wanted(flux(), fused)
    layer = model.get_submodule(LAYERS[1])
    plain = layer.get_delta_weight

    def interrupted(name: str) -> torch.Tensor:
        _thread.interrupt_main()
        delta: torch.Tensor = plain(name)
        return delta

    layer.get_delta_weight = interrupted
    with pytest.raises(KeyboardInterrupt):
        model.fuse_lora(lora_scale=0.9)
    del layer.get_delta_weight
    assert torch.equal(given(model), expected)
    assert_given_back(model, card)


def test_a_fuse_that_fails_leaves_strengths_of_the_layers_it_did_not_reach() -> None:
    """So that it can be done again: no layer has its strength changed twice."""
    model = flux()
    card = fitted(model, 0.6)
    two(model)
    expected = wanted(flux(), fused)
    layer = model.get_submodule(LAYERS[0])

    def fail(name: str) -> torch.Tensor:
        raise MemoryError(name)

    layer.get_delta_weight = fail
    with pytest.raises(MemoryError):
        model.fuse_lora(lora_scale=0.9)
    del layer.get_delta_weight
    model.fuse_lora(lora_scale=0.9)
    assert torch.equal(given(model), expected)
    assert_given_back(model, card)


def test_where_there_is_no_room_any_more_the_next_call_says_so_and_a_smaller_lora_works() -> None:
    """Loading itself does not fail for want of room on the card."""
    model = flux()
    card = virtual(64 * MIB)
    tightfit.fit(model, card=card, vram=500 * KIB, example=inputs())
    base = given(model)
    load(model, 5, "large", rank=600)
    assert any("no room" in note for note in tightfit.fitted(model).notes)
    with pytest.raises(MemoryShortage):
        given(model)
    model.unload_lora()
    assert torch.equal(given(model), base)
    assert_given_back(model, card)


def test_from_within_a_call_and_under_a_plan_of_ones_own_nothing_is_changed() -> None:
    """One clear sentence in both cases."""
    model = flux()
    card = fitted(model, 0.6)
    handle = model.norm_out.register_forward_pre_hook(lambda *_: load(model, 5, "a"))
    with pytest.raises(UsageError, match="is being called: `load_lora_adapter` has to wait"):
        given(model)
    handle.remove()
    plan = tightfit.fitted(model).plan
    assert_given_back(model, card)
    with (
        tightfit.placed(model, plan, card=card, example=inputs()),
        pytest.raises(UsageError, match=r"`load_lora_adapter` would change .* plan again"),
    ):
        load(model, 5, "a")
    assert_back(card)


def test_adapters_have_no_gradients_while_fitted_and_have_them_again_afterwards() -> None:
    """PEFT wants them for whatever adapter is chosen."""
    model = flux()
    two(model)
    wants = {name for name, p in model.named_parameters() if p.requires_grad}
    assert wants
    card = fitted(model, 0.6)
    model.set_adapters("a")
    assert not model(**inputs())[0].requires_grad
    tightfit.unfit(model)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == wants
    assert_back(card)


def test_a_lora_is_saved_with_its_values_wherever_they_are(tmp_path: Any) -> None:
    """What is away shows NaN, and is saved from its master."""
    model = flux()
    card = fitted(model, 0.1)
    load(model, 5, "a")
    given(model)
    model.save_lora_adapter(tmp_path, adapter_name="a")
    again = flux()
    name = "pytorch_lora_weights.safetensors"
    again.load_lora_adapter(tmp_path, prefix=None, adapter_name="a", weight_name=name)
    assert torch.equal(wanted(again), given(model))
    assert_given_back(model, card)


def test_a_pipeline_loads_fuses_and_unloads_as_ever() -> None:
    """By its own methods, which reach for those of the module."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline

    def pipeline(model: Any) -> Any:
        return FluxPipeline(FlowMatchEulerDiscreteScheduler(), None, None, None, None, None, model)

    steps: list[Callable[[Any], object]] = [
        lambda pipe: pipe.load_lora_weights(lora(pipe.transformer, 5), adapter_name="a"),
        lambda pipe: pipe.set_adapters(["a"], [0.5]),
        lambda pipe: pipe.fuse_lora(components=["transformer"]),
        lambda pipe: pipe.unload_lora_weights(),
    ]
    whole, model = flux(), flux()
    card = fitted(model, 0.3)
    for step in steps:
        step(pipeline(whole))
        step(pipeline(model))
        assert model.device == card.device
        assert torch.equal(given(model), wanted(whole))
    assert_given_back(model, card)
