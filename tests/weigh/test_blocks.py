"""Blocks, leaves, and how a header is cut into them; bundles taken apart."""

from __future__ import annotations

import dataclasses

import pytest

from tests.weigh import original_names as original
from tests.weigh.header_makers import header_of, mixed_header
from tightfit.weigh.blocks import Block, Leaf, Weights
from tightfit.weigh.files.header_blocks import blocks_of_header
from tightfit.weigh.files.headers import Header
from tightfit.weigh.files.parts import parts_of_header

SMALL = Leaf("a", stored_bytes=10, converted_bytes=40, largest_bytes=8, elements=20)
LARGE = Leaf("b", stored_bytes=30, converted_bytes=20, largest_bytes=30, elements=30)


def names(weights: Weights) -> list[str]:
    """Of its blocks, in their order."""
    return [block.name for block in weights.blocks]


def test_a_block_is_the_sum_of_its_leaves_but_converts_one_at_a_time() -> None:
    """The scratch is as large as the largest copy, which is not always the largest leaf's."""
    block = Block("layers.0", (SMALL, LARGE))
    assert block.stored_bytes == 40
    assert block.converted_bytes == 40
    assert block.total_converted_bytes == 60
    assert block.largest_leaf is LARGE
    assert block.largest_bytes == 30
    assert block.elements == 50


def test_weights_are_the_sum_of_their_blocks() -> None:
    """And need one scratch, and a slot for the largest block."""
    weights = Weights("model", (Block("a", (SMALL,)), Block("b", (LARGE,))), "keys")
    assert weights.stored_bytes == 40
    assert weights.converted_bytes == 40
    assert weights.largest_block == 30
    assert weights.elements == 50
    empty = Weights("model", (), "keys")
    assert (empty.stored_bytes, empty.converted_bytes, empty.largest_block) == (0, 0, 0)


def test_a_block_without_leaves_is_none() -> None:
    """So every block has a largest leaf."""
    with pytest.raises(ValueError, match="`empty`"):
        Block("empty", ())


def test_values_cannot_be_changed() -> None:
    """They are shared between a plan and those who carry it out."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.stored_bytes = 0  # type: ignore[misc]


ALL = {
    "flux": original.flux(),
    "flux.2": original.flux2(),
    "wan": original.wan(5120, 13824, 40, channels=36, image=True),
    "sdxl": original.unet((320, 640, 1280), (0, 2, 10), 2048, xl=True),
    "vae": original.autoencoder(4, quantised=True),
    "t5": original.t5(32128, every_bias=False),
}


@pytest.mark.parametrize("model", ALL)
@pytest.mark.parametrize("dtype", ["BF16", "F32", "F8_E4M3"])
def test_no_byte_is_lost_or_counted_twice(model: str, dtype: str) -> None:
    """Each tensor is in one leaf, each leaf in one block, and names are not repeated."""
    header = header_of(ALL[model], dtype)
    weights = blocks_of_header(header, "bfloat16")
    leaves = [leaf for block in weights.blocks for leaf in block.leaves]
    assert weights.stored_bytes == header.weight_bytes
    assert weights.elements == header.elements
    assert len({leaf.name for leaf in leaves}) == len(leaves)
    assert len(set(names(weights))) == len(weights.blocks)
    assert all(
        leaf.name == block.name or leaf.name.startswith(f"{block.name}.") or not block.name
        for block in weights.blocks
        for leaf in block.leaves
    )
    copied = sum(leaf.converted_bytes for leaf in leaves)
    assert copied == (0 if dtype == "BF16" else 2 * header.elements)


def test_the_blocks_of_flux_come_in_the_order_they_run() -> None:
    """Embedders, double blocks, single blocks, the end; numbers as numbers, not as text."""
    weights = blocks_of_header(header_of(original.flux()), "bfloat16")
    assert weights.name == "flux.1-dev/transformer"
    assert weights.order == "keys"
    assert names(weights) == [
        *("img_in", "time_in", "guidance_in", "vector_in", "txt_in"),
        *(f"double_blocks.{n}" for n in range(19)),
        *(f"single_blocks.{n}" for n in range(38)),
        "final_layer",
    ]
    double = weights.blocks[5]
    assert double.stored_bytes >> 20 == 648
    assert double.largest_bytes >> 20 == 108


def test_a_sequence_of_layers_is_no_list_of_blocks() -> None:
    """`time_embedding.0` and `.2` are one unit; `net.0.proj` and `net.2` belong to their parent."""
    shapes = original.wan(5120, 13824, 40, channels=36, image=True)
    weights = blocks_of_header(header_of(shapes), "bfloat16")
    assert names(weights) == [
        *("patch_embedding", "time_embedding", "time_projection", "text_embedding", "img_emb"),
        *(f"blocks.{n}" for n in range(40)),
        "head",
    ]
    leaves = [leaf.name for leaf in weights.blocks[5].leaves]
    assert "blocks.0" in leaves  # its modulation
    assert "blocks.0.ffn.2" in leaves


def test_a_unet_runs_down_through_the_middle_and_up() -> None:
    """Not in the order of the alphabet."""
    weights = blocks_of_header(header_of(ALL["sdxl"]), "float16")
    assert names(weights) == [
        "time_embed",
        "label_emb.0",
        *(f"input_blocks.{n}" for n in range(9)),
        *(f"middle_block.{n}" for n in range(3)),
        *(f"output_blocks.{n}" for n in range(9)),
        "out",
    ]


def test_the_decoder_of_latent_diffusion_counts_its_levels_down() -> None:
    """`decoder.up.3` runs first."""
    found = names(blocks_of_header(header_of(ALL["vae"]), "float32"))
    assert found[found.index("post_quant_conv") :] == [
        "post_quant_conv",
        "decoder.conv_in",
        "decoder.mid",
        *(f"decoder.up.{n}" for n in (3, 2, 1, 0)),
        "decoder.norm_out",
        "decoder.conv_out",
    ]


def test_what_stands_before_all_names_is_left_out() -> None:
    """And changes neither the name of the model nor its blocks."""
    plain = blocks_of_header(header_of(original.flux2()), "bfloat16")
    for prefix in ("model.diffusion_model.", "model.model.", "transformer."):
        shapes = {prefix + name: shape for name, shape in original.flux2().items()}
        assert blocks_of_header(header_of(shapes), "bfloat16") == plain


def test_an_architecture_that_is_not_known_has_blocks_all_the_same() -> None:
    """What is called like an output comes last, numbered lists between, the rest first."""
    shapes = {
        **{f"layers.{n}.mlp.weight": (4, 4) for n in range(12)},
        **{f"single_layers.{n}.mlp.weight": (4, 4) for n in range(2)},
        "embedder.inner.weight": (4, 4),
        "register": (3,),
        "norm_out.weight": (4,),
        "heads.0.weight": (4,),
        "heads.1.weight": (4,),
    }
    weights = blocks_of_header(header_of(shapes, class_name="NovelModel"), "bfloat16")
    assert weights.name == "NovelModel"
    assert names(weights) == [
        "embedder",
        "heads",
        "",
        *(f"layers.{n}" for n in range(12)),
        *(f"single_layers.{n}" for n in range(2)),
        "norm_out",
    ]
    assert blocks_of_header(header_of(shapes), "bfloat16").name == "made-up"


def test_lists_inside_blocks_belong_to_the_outermost_one() -> None:
    """And a module beside a list, within one parent, is a block of its own."""
    shapes = {
        "encoder.conv_in.weight": (2, 2),
        "encoder.down.0.block.0.conv.weight": (2, 2),
        "encoder.down.0.block.1.conv.weight": (2, 2),
        "encoder.down.1.block.0.conv.weight": (2, 2),
        "encoder.conv_out.weight": (2, 2),
    }
    weights = blocks_of_header(header_of(shapes), "bfloat16")
    assert names(weights) == [
        "encoder.conv_in",
        "encoder.down.0",
        "encoder.down.1",
        "encoder.conv_out",
    ]
    assert [leaf.name for leaf in weights.blocks[1].leaves] == [
        "encoder.down.0.block.0.conv",
        "encoder.down.0.block.1.conv",
    ]


def test_a_packed_weight_and_what_belongs_to_it_are_one_leaf() -> None:
    """The scratch is the copy of the largest; scales move along and are not copied."""
    tensors = {
        "blocks.0.lin.weight": ("U8", (1024, 1)),
        "blocks.0.lin.weight.absmax": ("F32", (32,)),
        "blocks.0.lin.weight.quant_map": ("F32", (16,)),
        "blocks.0.lin.weight.quant_state.bitsandbytes__nf4": ("U8", (90,)),
        "blocks.0.lin.bias": ("BF16", (64,)),
        "blocks.0.out.weight": ("F8_E4M3", (64, 64)),
        "blocks.0.out.scale_weight": ("F32", (1,)),
        "blocks.0.quanto.weight._data": ("I8", (8, 8)),
        "blocks.0.quanto.weight._scale": ("F16", (8, 1)),
    }
    (block,) = blocks_of_header(mixed_header(tensors), "bfloat16").blocks
    assert block.leaves == (
        Leaf("blocks.0.lin", 1024 + 128 + 64 + 90 + 128, 2 * 2048, 1024, 2048 + 64),
        Leaf("blocks.0.out", 64 * 64 + 4, 2 * 64 * 64, 64 * 64, 64 * 64),
        Leaf("blocks.0.quanto", 64 + 16, 128, 64, 64),
    )
    assert block.converted_bytes == 2 * 64 * 64
    assert block.total_converted_bytes == 2 * (2048 + 64 * 64 + 64)


def under(prefix: str, shapes: original.Shapes) -> original.Shapes:
    """The same tensors as part of a bundle."""
    return {prefix + name: shape for name, shape in shapes.items()}


BUNDLES: dict[str, tuple[original.Shapes, dict[str, str]]] = {
    "sdxl": (
        under("model.diffusion_model.", ALL["sdxl"])
        | under("first_stage_model.", ALL["vae"])
        | under("conditioner.embedders.0.transformer.", original.clip(768, 12))
        | under("conditioner.embedders.1.model.", original.open_clip()),
        {
            "text_encoder": "clip-l",
            "text_encoder_2": "openclip-bigg",
            "unet": "sdxl/unet",
            "vae": "sdxl-vae",
        },
    ),
    "sd1.5": (
        under(
            "model.diffusion_model.",
            original.unet((320, 640, 1280, 1280), (1, 1, 1, 0), 768, xl=False),
        )
        | under("first_stage_model.", ALL["vae"])
        | under("cond_stage_model.transformer.", original.clip(768, 12))
        | {"model_ema.decay": (), "alphas_cumprod": (1000,)},
        {
            "text_encoder": "clip-l",
            "unet": "sd1.5/unet",
            "vae": "sdxl-vae",
            "rest": "",
        },
    ),
    "flux": (
        under("model.diffusion_model.", original.flux())
        | under("vae.", original.autoencoder(16, quantised=False))
        | under("text_encoders.t5xxl.transformer.", original.t5(32128, every_bias=False))
        | under("text_encoders.clip_l.transformer.", original.clip(768, 12))
        | {"text_encoders.clip_l.logit_scale": ()},
        {
            "text_encoder": "clip-l",
            "text_encoder_2": "t5-xxl",
            "transformer": "flux.1-dev/transformer",
            "vae": "flux-vae",
        },
    ),
}


@pytest.mark.parametrize("bundle", BUNDLES)
def test_a_bundle_is_taken_apart_into_the_parts_of_its_pipeline(bundle: str) -> None:
    """Each is recognised by its own names, and together they weigh what the file weighs."""
    shapes, expected = BUNDLES[bundle]
    header = header_of(shapes, "F16")
    parts = parts_of_header(header)
    assert list(parts) == list(expected)
    assert sum(part.weight_bytes for part in parts.values()) == header.weight_bytes
    for name, known in expected.items():
        weights = blocks_of_header(parts[name], "float16")
        assert weights.name == (known or "made-up")
        assert weights.stored_bytes == parts[name].weight_bytes


def test_a_file_with_one_model_has_one_part() -> None:
    """Called as in its pipeline where it is known, and `model` where it is not."""
    assert list(parts_of_header(header_of(original.flux()))) == ["transformer"]
    assert list(parts_of_header(header_of(original.t5(32128, every_bias=False)))) == [
        "text_encoder"
    ]
    assert list(parts_of_header(header_of({"a.weight": (2,)}))) == ["model"]
    prefixed = header_of(under("model.diffusion_model.", original.flux()))
    parts = parts_of_header(prefixed)
    assert list(parts) == ["transformer"]
    assert "img_in.weight" in parts["transformer"].by_name


def test_ties_follow_their_tensor_into_its_part() -> None:
    """Under the name that it has there."""
    header = header_of({"vae.a": (2,), "text_encoders.t5.transformer.shared.weight": (3,)})
    kept = "text_encoders.t5.transformer.shared.weight"
    tied = Header(header.path, "safetensors", header.tensors, ties={"other": kept})
    parts = parts_of_header(tied)
    assert dict(parts["text_encoder"].ties) == {"other": "shared.weight"}
    assert not parts["vae"].ties
