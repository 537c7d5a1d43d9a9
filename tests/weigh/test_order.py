"""The order in which weights are needed, and who reaches for them from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from transformers import T5Config, T5EncoderModel

from tightfit.card import open_card
from tightfit.place import placed
from tightfit.testing import toy_vae
from tightfit.weigh import weights
from tightfit.weigh.dry import dry_run
from tightfit.weigh.module_blocks import blocks_of
from tightfit.weigh.order import (
    BYTE_WORK,
    Foreign,
    Order,
    dry_order,
    joined,
    ordered,
    run_order,
)

BF16 = torch.bfloat16


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="meta")


def on_meta(make: Callable[..., Any], **arguments: Any) -> Any:
    with torch.device("meta"):
        return make(**arguments).to(BF16).eval()


class Backwards(nn.Module):
    """Registers its layers in one order and runs them in another, some never, some often."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.first = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in (self.layers[2], self.layers[0], self.layers[2], self.layers[2]):
            x = layer(x)
        return self.last(x)


class Reaching(nn.Module):
    """Uses a child's weight without calling the child."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(functional.linear(x, self.proj.weight))


class Attending(nn.Module):
    """A block around torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        return self.attn(x, x, x, need_weights=False)[0]


class Handing(nn.Module):
    """Gives a view of its buffer away, or a copy."""

    def __init__(self, *, copy: bool) -> None:
        super().__init__()
        self.copy = copy
        self.register_buffer("table", torch.ones(8))

    def forward(self, length: int) -> torch.Tensor:
        view = self.table[:length]
        return view.clone() if self.copy else view


def test_blocks_are_put_in_the_order_they_run() -> None:
    """What never runs comes last; nothing is lost."""
    module = Backwards()
    found = blocks_of(module)
    order = run_order(module, lambda: module(torch.ones(1, 4)))
    names = ["first", "layers.2", "layers.0", "last", "never", "layers.1"]
    again = ordered(found, order)
    assert [block.name for block in again.blocks] == names
    assert again.order == "dry run"
    assert sorted(again.blocks, key=str) == sorted(found.blocks, key=str)
    assert order.unused == (
        "never.weight",
        "never.bias",
        "layers.1.weight",
        "layers.1.bias",
    )


def test_the_schedule_names_a_block_each_time_it_is_needed_again() -> None:
    """Once for two runs in a row; `times` counts both."""
    module = Backwards()
    found = blocks_of(module)
    order = run_order(module, lambda: module(torch.ones(1, 4)))
    assert order.schedule(found) == ("first", "layers.2", "layers.0", "layers.2", "last")
    times = {block.name: order.times(block) for block in found.blocks}
    assert times == {
        "first": 1,
        "layers.2": 3,
        "layers.0": 1,
        "last": 1,
        "never": 0,
        "layers.1": 0,
    }


def test_a_condition_decides_what_runs() -> None:
    """A skipped block is told by the call that skips it."""
    module = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def call() -> torch.Tensor:
        x = torch.ones(1, 4)
        for layer in module[::2]:
            x = layer(x)
        return x

    order = run_order(module, call)
    assert order.schedule(blocks_of(module)) == ("0", "2")
    assert order.unused == ("1.weight", "1.bias", "3.weight", "3.bias")


def test_leaves_are_sorted_within_their_block() -> None:
    """A block may run its layers backwards too."""

    class Swapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(self.up(x))

    module = nn.Sequential(Swapped(), Swapped())
    order = run_order(module, lambda: module(torch.ones(1, 4)))
    leaves = [
        leaf.name for block in ordered(blocks_of(module), order).blocks for leaf in block.leaves
    ]
    assert leaves == ["0.up", "0.down", "1.up", "1.down"]


@pytest.mark.parametrize("where", ["cpu", "meta", "virtual:1MiB"])
def test_every_device_tells_the_same(where: str) -> None:
    """A dry run, a real one, and one on a virtual card."""
    module = Backwards()
    expected = run_order(module, lambda: module(torch.ones(1, 4)))
    card = None if where == "meta" else open_card(where)
    device = torch.device("meta") if card is None else card.device
    with placed(module, device):
        assert run_order(module, lambda: module(torch.ones(1, 4, device=device))) == expected


def test_a_weight_that_is_used_without_its_module_is_foreign() -> None:
    """Who owns it, who used it, and what was being called around both."""
    module = nn.Sequential(Reaching(), nn.Linear(4, 4))
    order = run_order(module, lambda: module(torch.ones(1, 4)))
    assert order.foreign == (Foreign("0.proj", "weight", user="0", unit="0"),)
    assert order.foreign[0].path == "0.proj.weight"
    assert order.unused == ("0.proj.bias",)


def test_the_attention_of_torch_reaches_into_its_projection() -> None:
    """It never calls it; the attention has to move as one, and a block around both does."""
    module = nn.Sequential(Attending(), Attending()).eval()
    order = run_order(module, lambda: module(torch.ones(1, 3, 8)))
    assert [(use.path, use.user, use.unit) for use in order.foreign] == [
        (f"{at}.attn.out_proj.{name}", f"{at}.attn", f"{at}.attn")
        for at in (0, 1)
        for name in ("weight", "bias")
    ]
    assert order.across(blocks_of(module)) == ()


def test_blocks_that_are_reached_into_are_joined() -> None:
    """Alone, the attention and its projection are two; together they are one."""
    module = Attending().eval()
    order = run_order(module, lambda: module(torch.ones(1, 3, 8)))
    apart = blocks_of(module)
    assert [block.name for block in apart.blocks] == ["norm", "attn", "attn.out_proj"]
    assert len(order.across(apart)) == 2
    together = joined(apart, order)
    assert [block.name for block in together.blocks] == ["norm", "attn"]
    assert together.stored_bytes == apart.stored_bytes
    assert order.across(together) == ()


def test_a_buffer_that_is_read_from_outside_has_no_unit() -> None:
    """As pipelines read the statistics of a VAE's norm: no call covers it, so it has to stay."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    order = run_order(module, lambda: module[0](torch.ones(1, 4)) + module[1].running_mean)
    assert order.foreign == (Foreign("1", "running_mean", user="", unit=""),)
    apart = blocks_of(module)
    assert order.across(apart) == order.foreign
    assert joined(apart, order) == apart


@pytest.mark.parametrize("copy", [False, True])
def test_a_view_that_its_owner_gave_away_is_foreign_where_it_is_used(copy: bool) -> None:
    """Its bytes have to stay for as long as others look at them; a copy is free of them."""
    module = nn.ModuleList([Handing(copy=copy), nn.Linear(4, 4)])
    order = run_order(module, lambda: module[1](torch.ones(1, 4) + module[0](4)))
    given = (Foreign("0", "table", user="", unit=""),)
    assert order.foreign == (() if copy else given)


def test_plain_attributes_are_told_apart() -> None:
    """Modules move them by themselves; hooks that move weights need not know."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Identity())
    module[1].table = torch.ones(4)
    order = run_order(module, lambda: module(torch.ones(1, 4)) + module[1].table)
    assert order.foreign == ()
    assert order.foreign_attributes == (Foreign("1", "table", user="", unit=""),)
    assert order.tensors == ("0.weight", "0.bias", "1.table")


def test_a_forward_that_is_called_by_hand_is_foreign() -> None:
    """Hooks do not run for it, so nothing would bring its weights."""
    module = nn.Sequential(nn.Linear(4, 4))
    order = run_order(module, lambda: module[0].forward(torch.ones(1, 4)))
    assert {use.path for use in order.foreign} == {"0.weight", "0.bias"}


def test_a_tie_runs_in_each_of_its_places() -> None:
    """Neither use is foreign; the block that holds the bytes is needed both times."""
    module = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 10))
    module[2].weight = module[0].weight
    order = run_order(module, lambda: module(torch.zeros(1, dtype=torch.long)))
    assert order.foreign == order.unused == ()
    assert order.tensors == ("0.weight", "1.weight", "1.bias", "2.weight", "2.bias")
    assert order.schedule(blocks_of(module)) == ("0", "1", "2", "0")


def test_weights_in_one_storage_are_told_apart() -> None:
    """As those of a mapped file may lie."""
    flat = torch.zeros(40)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        for at, layer in enumerate(module):
            layer.weight = nn.Parameter(flat[20 * at : 20 * at + 16].view(4, 4))
            layer.bias = nn.Parameter(flat[20 * at + 16 : 20 * at + 20])
    order = run_order(module, lambda: module[1](torch.ones(1, 4)))
    assert order.tensors == ("1.weight", "1.bias")
    assert order.foreign == ()


def test_a_parametrized_weight_is_used_by_its_layer() -> None:
    """Its originals lie in children, and a reach for the weight from elsewhere is still foreign."""
    module = nn.Sequential(weight_norm(nn.Linear(4, 4)))
    order = run_order(module, lambda: module(torch.ones(1, 4)))
    assert order.foreign == ()
    assert order.schedule(blocks_of(module)) == ("0",)
    order = run_order(module, lambda: functional.linear(torch.ones(1, 4), module[0].weight))
    assert {use.owner for use in order.foreign} == {"0"}


def test_old_style_weight_norm_runs_before_its_layer_and_within_its_call() -> None:
    """Its hook reads the originals."""
    with pytest.warns(FutureWarning):
        module = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)))
    order = run_order(module, lambda: module(torch.ones(1, 4)))
    assert order.foreign == order.unused == ()


def test_nothing_is_left_on_the_module_whatever_happens() -> None:
    """An error comes through, and the hooks are gone."""
    module = Backwards()
    with pytest.raises(RuntimeError):
        run_order(module, lambda: module(torch.ones(1, 5)))
    run_order(module, lambda: module(torch.ones(1, 4)))
    for child in module.modules():
        assert not child._forward_hooks
        assert not child._forward_pre_hooks
        assert not child._forward_hooks_always_called


def test_an_error_that_the_caller_swallows_leaves_the_calls_straight() -> None:
    """What runs after it is not taken to run inside what failed."""
    module = nn.Sequential(Reaching(), nn.Linear(4, 4))

    def call() -> torch.Tensor:
        with pytest.raises(RuntimeError):
            module[0](torch.ones(1, 5))
        return functional.linear(torch.ones(1, 4), module[0].out.weight)

    assert Foreign("0.out", "weight", user="", unit="") in run_order(module, call).foreign


def flux(**arguments: Any) -> tuple[nn.Module, Callable[[], object]]:
    model = on_meta(diffusers.FluxTransformer2DModel, guidance_embeds=True, **arguments)
    joint, pooled = model.config.joint_attention_dim, model.config.pooled_projection_dim
    return model, lambda: model(
        hidden_states=meta(1, 64, model.config.in_channels),
        encoder_hidden_states=meta(1, 8, joint),
        pooled_projections=meta(1, pooled),
        timestep=meta(1),
        guidance=meta(1),
        img_ids=meta(64, 3),
        txt_ids=meta(8, 3),
    )


def flux_narrow() -> tuple[nn.Module, Callable[[], object]]:
    return flux(
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )


def wan_narrow() -> tuple[nn.Module, Callable[[], object]]:
    model = on_meta(
        diffusers.WanTransformer3DModel,
        num_layers=2,
        num_attention_heads=2,
        attention_head_dim=12,
        ffn_dim=32,
        text_dim=16,
    )
    return model, lambda: model(meta(1, 16, 2, 8, 8), meta(1, dtype=torch.long), meta(1, 8, 16))


def qwen_narrow() -> tuple[nn.Module, Callable[[], object]]:
    model = on_meta(
        diffusers.QwenImageTransformer2DModel,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 4, 8),
    )
    return model, lambda: model(
        hidden_states=meta(1, 16, 64),
        encoder_hidden_states=meta(1, 8, 32),
        timestep=meta(1),
        img_shapes=[(1, 4, 4)],
    )


def t5_narrow() -> tuple[nn.Module, Callable[[], object]]:
    config = T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=100)
    model = on_meta(T5EncoderModel, config=config)
    return model, lambda: model(meta(1, 8, dtype=torch.long))


def wan_vae_narrow() -> tuple[nn.Module, Callable[[], object]]:
    vae = on_meta(diffusers.AutoencoderKLWan, base_dim=8)
    return vae, lambda: vae.decode(vae.encode(meta(1, 3, 5, 32, 32)).latent_dist.mode())


@pytest.mark.parametrize("make", [flux_narrow, wan_narrow, qwen_narrow, t5_narrow, wan_vae_narrow])
def test_known_models_use_every_weight_and_none_from_elsewhere(
    make: Callable[[], tuple[nn.Module, Callable[[], object]]],
) -> None:
    """So their blocks may move at the calls of their owners."""
    model, call = make()
    order = run_order(model, call)
    assert order.foreign == ()
    assert order.unused == ()
    found = blocks_of(model)
    assert set(order.schedule(found)) == {block.name for block in found.blocks}


@pytest.mark.parametrize("made", [flux_narrow, wan_narrow, qwen_narrow, t5_narrow, wan_vae_narrow])
def test_one_run_tells_what_two_would(
    made: Callable[[], tuple[nn.Module, Callable[[], object]]],
) -> None:
    """Every move of memory, every operator, every use and all work, in the same order."""
    module, call = made()
    call()  # tables of positions are made once
    assert dry_order(module, call) == (dry_run(call), run_order(module, call))


class Fusing(nn.Module):
    """A table that takes part in attention, and a norm whose weight is nobody else's."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(2, 64, 8))
        self.norm = nn.RMSNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(functional.scaled_dot_product_attention(x, self.table, x))
        return result


def test_attention_and_norms_are_the_work_of_fused_kernels() -> None:
    """What they read is used, and what they write in between on the way is no work."""
    module = on_meta(Fusing)
    order = run_order(module, lambda: module(meta(2, 64, 8)))
    written = 2 * 64 * 8 * BF16.itemsize * BYTE_WORK
    assert order.tensors == ("table", "norm.weight")
    assert order.uses == ("", "norm")
    assert order.work == {"": 2 * 2 * 64 * 64 * (8 + 8) + written, "norm": written}
    assert order.launches == {"": 1, "norm": 1}


@pytest.mark.parametrize("name", ["V2", "V2N", "V2P", "V3", "VA"])
def test_toy_vaes_need_their_halves_in_turn(name: str) -> None:
    """Encoding and decoding use every weight between them, each once registered."""
    vae = toy_vae(name)
    shape = {"V3": (1, 3, 5, 16, 16), "VA": (1, 2, 1920 * 2)}.get(name, (1, 3, 16, 16))
    order = run_order(vae.module, lambda: vae.decode(vae.encode(torch.zeros(shape))))
    assert order.foreign == ()
    assert order.unused == ()


def test_flux_uses_its_1160_tensors_block_after_block() -> None:
    """True size, on the meta device: the order is known before a weight is read."""
    model, call = flux()
    order = run_order(model, call)
    assert len(order.tensors) == len(list(weights(model))) == 1160
    assert order.unused == order.foreign == ()
    found = blocks_of(model)
    schedule = order.schedule(found)
    assert len(schedule) == len(found.blocks)  # each needed once
    assert schedule[0] == "x_embedder"
    assert schedule[-59:] == (
        *(f"transformer_blocks.{at}" for at in range(19)),
        *(f"single_transformer_blocks.{at}" for at in range(38)),
        "norm_out.linear",
        "proj_out",
    )
    again = ordered(found, order)
    assert tuple(block.name for block in again.blocks) == schedule
    assert again.stored_bytes == found.stored_bytes


def test_a_wan_vae_decodes_with_its_decoder_alone() -> None:
    """True size, on the meta device: 108 of 194 tensors; an encode takes the other 86."""
    vae = on_meta(diffusers.AutoencoderKLWan)
    decode = run_order(vae, lambda: vae.decode(meta(1, 16, 2, 8, 8)))
    assert len(list(weights(vae))) == 194
    assert len(decode.tensors) == 108
    assert {path.split(".")[0] for path in decode.tensors} == {"post_quant_conv", "decoder"}
    encode = run_order(vae, lambda: vae.encode(meta(1, 3, 5, 64, 64)))
    assert len(encode.tensors) == 86
    assert not set(encode.tensors) & set(decode.tensors)


def test_an_order_of_nothing_moves_nothing() -> None:
    """A call that uses no weights leaves the blocks as they were registered."""
    found = blocks_of(Backwards())
    assert ordered(found, Order((), ())).blocks == found.blocks
