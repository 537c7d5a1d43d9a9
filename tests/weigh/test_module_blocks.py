"""The blocks of a live module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from transformers import T5Config, T5EncoderModel

from tests.weigh.shells import blocks_of_32, four_bit, with_quant_state
from tightfit.errors import InputError
from tightfit.testing import toy_vae
from tightfit.units import MIB
from tightfit.weigh import weight_bytes
from tightfit.weigh.blocks import Weights
from tightfit.weigh.module_blocks import blocks_of

BF16 = torch.bfloat16


class Mix(nn.Module):
    """A composite: two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)


class Other(Mix):
    """A composite of another class."""


class Stage(nn.Module):
    """A list inside a list, and something beside it."""

    def __init__(self, count: int, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mix(width) for _ in range(count))
        self.norm = nn.LayerNorm(width)


class Tower(nn.Module):
    """A way in, a list of blocks, a table of its own, a way out."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.way_in = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(blocks)
        self.table = nn.Parameter(torch.zeros(5))
        self.way_out = nn.Linear(8, 8)


def names(weights: Weights) -> list[str]:
    return [block.name for block in weights.blocks]


def on_meta(make: Callable[..., nn.Module], **arguments: Any) -> nn.Module:
    with torch.device("meta"):
        return make(**arguments).to(BF16)


@pytest.mark.parametrize("name", ["V2", "V2N", "V2P", "V3", "VA"])
def test_every_weight_is_in_one_block(name: str) -> None:
    """The blocks weigh what the module weighs, and every leaf lies in the block it is named for."""
    module = toy_vae(name).module
    found = blocks_of(module)
    assert found.stored_bytes == weight_bytes(module)
    assert (found.name, found.order) == (type(module).__name__, "keys")
    leaves = [leaf.name for block in found.blocks for leaf in block.leaves]
    assert len(set(leaves)) == len(leaves)
    assert len(set(names(found))) == len(found.blocks)
    for block in found.blocks:
        for leaf in block.leaves:
            assert leaf.name == block.name or leaf.name.startswith(f"{block.name}.")


def test_members_of_a_list_are_blocks_and_the_rest_goes_by_owner() -> None:
    """In the order of registration; the root's own tensors are a block without a name."""
    found = blocks_of(Tower(*(Mix(8) for _ in range(5))), name="tower")
    assert names(found) == ["", "way_in", *(f"blocks.{at}" for at in range(5)), "way_out"]
    assert found.name == "tower"
    assert [leaf.name for leaf in found.blocks[2].leaves] == ["blocks.0.up", "blocks.0.down"]


def test_a_module_without_blocks_is_its_owners() -> None:
    """Any module works."""
    module = nn.Sequential(*(nn.Linear(6, 6) for _ in range(10)), nn.ReLU(), nn.Linear(24, 24))
    assert names(blocks_of(module)) == [*map(str, range(10)), "11"]
    assert names(blocks_of(nn.Linear(3, 3))) == [""]
    assert blocks_of(nn.ReLU()).blocks == ()


def test_a_block_above_a_quarter_gives_way_to_those_inside_it() -> None:
    """Only where there are some: a composite without lists stays one, however large."""
    module = Tower(Stage(9), Stage(1), Stage(1), Stage(1))
    assert names(blocks_of(module)) == [
        "",
        "way_in",
        *(f"blocks.0.layers.{at}" for at in range(9)),
        "blocks.0.norm",
        *(f"blocks.{at}" for at in (1, 2, 3)),
        "way_out",
    ]
    assert "blocks.0" in names(blocks_of(Tower(Mix(8))))


def test_a_named_block_gives_way_to_named_ones_inside_where_it_is_a_large_part_of_all() -> None:
    """As the last stage of SDXL's UNet does: nothing else could be copied while it runs."""
    module = Tower(Stage(3), *(Stage(1) for _ in range(40)))
    module._no_split_modules = ["Stage", "Mix"]
    found = names(blocks_of(module))
    assert [name for name in found if name.startswith("blocks.0.")] == [
        *(f"blocks.0.layers.{at}" for at in range(3)),
        "blocks.0.norm",
    ]
    assert "blocks.1" in found


def test_a_mixed_list_of_composites_holds_blocks() -> None:
    """Unless they hold such lists themselves: then the even ones inside are."""
    flat = Tower(Mix(8), Other(8), Mix(8), Other(8), Mix(8))
    assert names(blocks_of(flat))[2:-1] == [f"blocks.{at}" for at in range(5)]
    nested = Tower(Stage(2), Mix(8), Mix(8), Mix(8))
    assert "blocks.0.layers.1" in names(blocks_of(nested))


@pytest.mark.parametrize("hint", ["_no_split_modules", "_repeated_blocks"])
def test_the_classes_that_a_model_names_are_its_blocks(hint: str) -> None:
    """Inside larger members of a list, and outside of any list; nobody else's class is."""
    module = Tower(*(Stage(2) for _ in range(5)))
    module.extra = Mix(8)
    setattr(module, hint, ["Mix"])
    found = names(blocks_of(module))
    assert [name for name in found if "layers" in name] == [
        f"blocks.{at}.layers.{layer}" for at in range(5) for layer in range(2)
    ]
    assert "extra" in found
    setattr(module, hint, None)
    assert "blocks.0" in names(blocks_of(module))


def test_a_tie_is_the_first_ones() -> None:
    """The other has nothing to move; its own bias it has."""
    module = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 100))
    module[1].weight = module[0].weight
    found = blocks_of(module)
    assert [block.stored_bytes for block in found.blocks] == [3200, 400]
    assert found.elements == 900


def test_a_plain_attribute_is_weight_and_a_list_of_them_is_not() -> None:
    """Position tables lie in the first, feature caches in the second; a tie is counted as owned."""
    module = nn.Sequential(nn.Identity(), nn.Linear(4, 4))
    module[0].table = torch.zeros(10)
    module[0].again = module[1].weight.detach()
    module[0].cache = [torch.zeros(1000)]
    assert [(b.name, b.stored_bytes) for b in blocks_of(module).blocks] == [("0", 40), ("1", 80)]


def test_a_parametrized_layer_is_one_leaf_with_its_copy() -> None:
    """Both originals are stored, the weight that is made of them is a conversion."""
    found = blocks_of(nn.Sequential(weight_norm(nn.Conv1d(2, 3, 5, bias=False))))
    (block,) = found.blocks
    (leaf,) = block.leaves
    assert leaf.name == "0"
    assert leaf.stored_bytes == 4 * (3 + 30)
    assert leaf.converted_bytes == 4 * 30
    assert leaf.largest_bytes == 4 * 30


def test_old_style_weight_norm_weighs_the_same() -> None:
    """The weight that its hook leaves behind is not stored twice."""
    with pytest.warns(FutureWarning):
        old = nn.utils.weight_norm(nn.Conv1d(2, 3, 5))
    new = weight_norm(nn.Conv1d(2, 3, 5))
    assert blocks_of(old).blocks == blocks_of(new).blocks


def test_conversions_follow_the_compute_dtype() -> None:
    """None for weights that have it, a copy for others; the scratch is the largest leaf's."""
    module = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 32, bias=False)).half()
    assert blocks_of(module).converted_bytes == 0
    assert blocks_of(module, compute_dtype=torch.float16).converted_bytes == 0
    assert blocks_of(module, compute_dtype=torch.float32).converted_bytes == 4 * 8 * 32
    module.to(torch.float8_e4m3fn)
    found = blocks_of(module, compute_dtype=BF16)
    assert (found.stored_bytes, found.converted_bytes) == (8 * 8 + 8 * 32, 2 * 8 * 32)


@pytest.mark.parametrize(
    "weight",
    [
        four_bit(64, 1024),
        with_quant_state(64, 1024),
        blocks_of_32(64, 1024),
        torch.zeros(64, 1024, dtype=torch.int8),
        torch.zeros(64, 512, dtype=torch.uint8),
    ],
    ids=["shell", "state", "gguf", "int8", "packed"],
)
def test_every_packing_converts_to_the_layers_weight(weight: torch.Tensor) -> None:
    """A linear layer knows its size, even where a packed uint8 weight does not tell."""
    layer = nn.Linear(1024, 64, bias=False)
    keeps = isinstance(weight, nn.Parameter)
    layer.weight = weight if keeps else nn.Parameter(weight, requires_grad=False)
    found = blocks_of(layer, compute_dtype=BF16)
    assert found.elements == 64 * 1024
    assert found.converted_bytes == 2 * 64 * 1024
    assert found.stored_bytes == weight_bytes(layer) < 70_000


def test_a_layer_that_says_what_it_computes_in_is_believed() -> None:
    """Quantising libraries keep it on the layer."""
    layer = nn.Linear(96, 64, bias=False)
    layer.weight = blocks_of_32(64, 96)
    assert blocks_of(layer).converted_bytes == 4 * 64 * 96
    layer.compute_dtype = BF16
    assert blocks_of(layer).converted_bytes == 2 * 64 * 96


def test_a_lazy_module_is_refused_by_name() -> None:
    """Its weights have no shape yet."""
    with pytest.raises(InputError, match=r"`1.weight` has no shape yet"):
        blocks_of(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3)))


def test_flux_is_57_blocks_and_what_lies_around_them() -> None:
    """True size, on the meta device: 19 of 648 MiB, 38 of 270 MiB, no tensor above 108 MiB."""
    model = on_meta(diffusers.FluxTransformer2DModel, guidance_embeds=True)
    found = blocks_of(model, compute_dtype=BF16)
    assert found.elements == 11_901_408_320
    assert found.stored_bytes == 2 * 11_901_408_320
    assert found.converted_bytes == 0
    for prefix, count, size in (("transformer", 19, 648), ("single_transformer", 38, 270)):
        blocks = [block for block in found.blocks if block.name.startswith(f"{prefix}_blocks.")]
        assert [block.name for block in blocks] == [f"{prefix}_blocks.{i}" for i in range(count)]
        assert {block.stored_bytes // MIB for block in blocks} == {size}
    assert max(block.largest_bytes for block in found.blocks) == 108 * MIB


def test_no_block_of_an_sdxl_unet_is_above_a_quarter() -> None:
    """True size, on the meta device: its first way up alone is 2301 of 4897 MiB."""
    model = on_meta(
        diffusers.UNet2DConditionModel,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(320, 640, 1280),
        cross_attention_dim=2048,
        attention_head_dim=(5, 10, 20),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
        transformer_layers_per_block=(1, 2, 10),
    )
    found = blocks_of(model)
    assert found.elements == 2_567_463_684
    assert found.largest_block * 4 < found.stored_bytes
    assert "up_blocks.0.attentions.0.transformer_blocks.9" in names(found)
    assert not any(name in ("up_blocks.0", "down_blocks.2") for name in names(found))


def test_t5_is_its_layers_and_one_embedding() -> None:
    """True size, on the meta device: the embedding has two owners and is counted once."""
    config = T5Config(
        d_model=4096,
        d_kv=64,
        d_ff=10240,
        num_layers=24,
        num_heads=64,
        feed_forward_proj="gated-gelu",
        vocab_size=32128,
    )
    found = blocks_of(on_meta(T5EncoderModel, config=config))
    assert found.elements == 4_762_310_656
    assert names(found) == [
        "shared",
        *(f"encoder.block.{at}" for at in range(24)),
        "encoder.final_layer_norm",
    ]
