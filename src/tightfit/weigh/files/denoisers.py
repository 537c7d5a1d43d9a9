"""Denoisers we know, by their tensors.

Origin: diffusers 0.42 (classes, and the names its converters of original checkpoints take) and the
public model configurations; parameters as counted on the meta device.
"""

from __future__ import annotations

from tightfit.weigh.files.naming import Family, Known, Naming


def _transformer(name: str, class_name: str, parameters: int) -> Known:
    return Known(f"{name}/transformer", class_name, "transformer", parameters)


def _unet(name: str, parameters: int) -> Known:
    return Known(f"{name}/unet", "UNet2DConditionModel", "unet", parameters)


_LISTS = ("transformer_blocks", "single_transformer_blocks", "norm_out", "proj_out")
_BFL_LISTS = ("double_blocks", "single_blocks", "final_layer")

FLUX = Family(
    (
        Naming(
            marks=(
                "x_embedder.weight",
                "transformer_blocks.0.norm1_context.linear.weight",
                "single_transformer_blocks.0.proj_mlp.weight",
            ),
            layers=("transformer_blocks.", "single_transformer_blocks."),
            sizes=("x_embedder.weight", "time_text_embed.guidance_embedder.linear_1.bias"),
            order=("x_embedder", "time_text_embed", "context_embedder", *_LISTS),
        ),
        Naming(
            marks=(
                "img_in.weight",
                "vector_in.in_layer.weight",
                "double_blocks.0.img_attn.qkv.weight",
            ),
            layers=("double_blocks.", "single_blocks."),
            sizes=("img_in.weight", "guidance_in.in_layer.bias"),
            order=("img_in", "time_in", "guidance_in", "vector_in", "txt_in", *_BFL_LISTS),
        ),
    ),
    {
        (19, 38, 3072 * 64, 3072): _transformer(
            "flux.1-dev", "FluxTransformer2DModel", 11_901_408_320
        ),
        (19, 38, 3072 * 64, 0): _transformer(
            "flux.1-schnell", "FluxTransformer2DModel", 11_891_178_560
        ),
    },
)

FLUX2 = Family(
    (
        Naming(
            marks=("x_embedder.weight", "double_stream_modulation_img.linear.weight"),
            layers=("transformer_blocks.", "single_transformer_blocks."),
            sizes=("x_embedder.weight", "context_embedder.weight"),
            order=(
                "time_guidance_embed",
                "double_stream_modulation_img",
                "double_stream_modulation_txt",
                "single_stream_modulation",
                "x_embedder",
                "context_embedder",
                *_LISTS,
            ),
        ),
        Naming(
            marks=("img_in.weight", "double_stream_modulation_img.lin.weight"),
            layers=("double_blocks.", "single_blocks."),
            sizes=("img_in.weight", "txt_in.weight"),
            order=(
                "time_in",
                "guidance_in",
                "double_stream_modulation_img",
                "double_stream_modulation_txt",
                "single_stream_modulation",
                "img_in",
                "txt_in",
                *_BFL_LISTS,
            ),
        ),
    ),
    {
        (8, 48, 6144 * 128, 6144 * 15360): _transformer(
            "flux.2-dev", "Flux2Transformer2DModel", 32_223_281_152
        ),
        (5, 20, 3072 * 128, 3072 * 7680): _transformer(
            "flux.2-klein-4b", "Flux2Transformer2DModel", 3_875_544_576
        ),
        (8, 24, 4096 * 128, 4096 * 12288): _transformer(
            "flux.2-klein-9b", "Flux2Transformer2DModel", 9_078_581_248
        ),
    },
)

WAN = Family(
    (
        Naming(
            marks=("patch_embedding.weight", "condition_embedder.time_proj.weight"),
            layers=("blocks.",),
            sizes=("patch_embedding.weight", "condition_embedder.image_embedder.norm1.weight"),
            order=("patch_embedding", "condition_embedder", "blocks", "norm_out", "proj_out"),
        ),
        Naming(
            marks=("patch_embedding.weight", "time_projection.1.weight", "head.head.weight"),
            layers=("blocks.",),
            sizes=("patch_embedding.weight", "img_emb.proj.0.weight"),
            order=(
                "patch_embedding",
                "time_embedding",
                "time_projection",
                "text_embedding",
                "img_emb",
                "blocks",
                "head",
            ),
        ),
    ),
    {
        (30, 1536 * 16 * 4, 0): _transformer(
            "wan2.1-t2v-1.3b", "WanTransformer3DModel", 1_418_996_800
        ),
        (40, 5120 * 16 * 4, 0): _transformer(
            "wan2.1-t2v-14b", "WanTransformer3DModel", 14_288_491_584
        ),
        (40, 5120 * 36 * 4, 1280): _transformer(
            "wan2.1-i2v-14b", "WanTransformer3DModel", 16_394_878_784
        ),
        (30, 3072 * 48 * 4, 0): _transformer(
            "wan2.2-ti2v-5b", "WanTransformer3DModel", 4_999_787_712
        ),
    },
)

QWEN_IMAGE = Family(
    (
        Naming(
            marks=("txt_norm.weight", "img_in.weight", "transformer_blocks.0.img_mod.1.weight"),
            layers=("transformer_blocks.",),
            sizes=("img_in.weight", "txt_in.weight"),
            order=("img_in", "txt_norm", "txt_in", "time_text_embed", *_LISTS),
        ),
    ),
    {
        (60, 3072 * 64, 3072 * 3584): _transformer(
            "qwen-image", "QwenImageTransformer2DModel", 20_430_401_088
        )
    },
)

UNET = Family(
    (
        Naming(
            marks=(
                "conv_in.weight",
                "up_blocks.0.resnets.0.conv1.weight",
                "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight",
            ),
            layers=("mid_block.attentions.0.transformer_blocks.",),
            sizes=(
                "conv_in.weight",
                "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight",
                "add_embedding.linear_1.bias",
            ),
            order=(
                "time_embedding",
                "add_embedding",
                "conv_in",
                "down_blocks",
                "mid_block.resnets.0",
                "mid_block.attentions.0",
                "mid_block.resnets.1",
                "up_blocks",
                "conv_norm_out",
                "conv_out",
            ),
        ),
        Naming(
            marks=(
                "input_blocks.0.0.weight",
                "output_blocks.0.0.in_layers.0.weight",
                "middle_block.1.transformer_blocks.0.attn2.to_k.weight",
            ),
            layers=("middle_block.1.transformer_blocks.",),
            sizes=(
                "input_blocks.0.0.weight",
                "middle_block.1.transformer_blocks.0.attn2.to_k.weight",
                "label_emb.0.0.bias",
            ),
            order=(
                "time_embed",
                "label_emb",
                "input_blocks",
                "middle_block",
                "output_blocks",
                "out",
            ),
        ),
    ),
    {
        (10, 320 * 4 * 9, 1280 * 2048, 1280): _unet("sdxl", 2_567_463_684),
        (1, 320 * 4 * 9, 1280 * 768, 0): _unet("sd1.5", 859_520_964),
    },
)

HUNYUAN_VIDEO = Family(
    (
        Naming(
            marks=(
                "x_embedder.proj.weight",
                "context_embedder.proj_in.weight",
                "single_transformer_blocks.0.proj_mlp.weight",
            ),
            layers=("transformer_blocks.", "single_transformer_blocks."),
            sizes=("x_embedder.proj.weight",),
            order=(
                "time_text_embed",
                "x_embedder",
                "context_embedder.time_text_embed",
                "context_embedder.proj_in",
                "context_embedder",
                *_LISTS,
            ),
        ),
        Naming(
            marks=(
                "img_in.proj.weight",
                "txt_in.input_embedder.weight",
                "single_blocks.0.linear1.weight",
            ),
            layers=("double_blocks.", "single_blocks."),
            sizes=("img_in.proj.weight",),
            order=(
                "time_in",
                "vector_in",
                "guidance_in",
                "img_in",
                "txt_in.t_embedder",
                "txt_in.c_embedder",
                "txt_in.input_embedder",
                "txt_in",
                *_BFL_LISTS,
            ),
        ),
    ),
    {
        (20, 40, 3072 * 16 * 4): _transformer(
            "hunyuan-video", "HunyuanVideoTransformer3DModel", 12_821_012_544
        )
    },
)

LTX_VIDEO = Family(
    (
        Naming(
            marks=(
                "proj_in.weight",
                "time_embed.linear.weight",
                "caption_projection.linear_1.bias",
            ),
            layers=("transformer_blocks.",),
            sizes=("proj_in.weight",),
            order=("proj_in", "time_embed", "caption_projection", *_LISTS),
        ),
        Naming(
            marks=("patchify_proj.weight", "adaln_single.linear.weight"),
            layers=("transformer_blocks.",),
            sizes=("patchify_proj.weight",),
            order=("patchify_proj", "adaln_single", "caption_projection", *_LISTS),
        ),
    ),
    {
        (28, 2048 * 128): _transformer("ltx-video", "LTXVideoTransformer3DModel", 1_923_385_472),
        (48, 4096 * 128): _transformer(
            "ltx-video-13b", "LTXVideoTransformer3DModel", 13_042_569_344
        ),
    },
)

Z_IMAGE = Family(
    (
        Naming(
            marks=(
                "all_x_embedder.2-1.weight",
                "cap_embedder.1.weight",
                "noise_refiner.0.attention.to_q.weight",
            ),
            layers=("layers.", "noise_refiner.", "context_refiner."),
            sizes=("all_x_embedder.2-1.weight",),
            order=(
                "t_embedder",
                "all_x_embedder",
                "noise_refiner",
                "cap_embedder",
                "context_refiner",
                "layers",
                "all_final_layer",
            ),
        ),
        Naming(
            marks=(
                "x_embedder.weight",
                "cap_embedder.1.weight",
                "noise_refiner.0.attention.qkv.weight",
            ),
            layers=("layers.", "noise_refiner.", "context_refiner."),
            sizes=("x_embedder.weight",),
            order=(
                "t_embedder",
                "x_embedder",
                "noise_refiner",
                "cap_embedder",
                "context_refiner",
                "layers",
                "final_layer",
            ),
        ),
    ),
    {
        (30, 2, 2, 3840 * 64): _transformer("z-image", "ZImageTransformer2DModel", 6_154_908_736),
    },
)

SD3 = Family(
    (
        Naming(
            marks=(
                "pos_embed.proj.weight",
                "context_embedder.weight",
                "transformer_blocks.0.norm1_context.linear.weight",
            ),
            layers=("transformer_blocks.",),
            sizes=("pos_embed.proj.weight",),
            order=("pos_embed", "time_text_embed", "context_embedder", *_LISTS),
        ),
        Naming(
            marks=(
                "x_embedder.proj.weight",
                "context_embedder.weight",
                "joint_blocks.0.x_block.attn.qkv.weight",
            ),
            layers=("joint_blocks.",),
            sizes=("x_embedder.proj.weight",),
            order=(
                "x_embedder",
                "t_embedder",
                "y_embedder",
                "context_embedder",
                "joint_blocks",
                "final_layer",
            ),
        ),
    ),
    {(38, 2432 * 16 * 4): _transformer("sd3.5-large", "SD3Transformer2DModel", 8_056_627_520)},
)

DENOISERS = (FLUX, FLUX2, WAN, QWEN_IMAGE, UNET, HUNYUAN_VIDEO, LTX_VIDEO, Z_IMAGE, SD3)
