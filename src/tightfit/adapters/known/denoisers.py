"""The denoisers we know, by the name of their pipeline: class, constructor arguments, true size.

Origin: class defaults of diffusers 0.42, its conversion scripts and the public model
configurations, confirmed by their parameter counts.
"""

from __future__ import annotations

from tightfit.adapters.known.architectures import Architecture

_SDXL_BLOCKS = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "in_channels": 4,
    "out_channels": 4,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
}

DENOISERS = {
    "flux.1-dev": Architecture("FluxTransformer2DModel", {"guidance_embeds": True}),
    "flux.1-schnell": Architecture("FluxTransformer2DModel", {"guidance_embeds": False}),
    "flux.2-dev": Architecture("Flux2Transformer2DModel"),
    "flux.2-klein-4b": Architecture(
        "Flux2Transformer2DModel",
        {
            "num_layers": 5,
            "num_single_layers": 20,
            "num_attention_heads": 24,
            "joint_attention_dim": 7680,
            "guidance_embeds": False,
        },
    ),
    "flux.2-klein-9b": Architecture(
        "Flux2Transformer2DModel",
        {
            "num_layers": 8,
            "num_single_layers": 24,
            "num_attention_heads": 32,
            "joint_attention_dim": 12288,
            "guidance_embeds": False,
        },
    ),
    "wan2.1-t2v-1.3b": Architecture(
        "WanTransformer3DModel", {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}
    ),
    "wan2.1-t2v-14b": Architecture("WanTransformer3DModel"),
    "wan2.1-i2v-14b": Architecture(
        "WanTransformer3DModel", {"in_channels": 36, "image_dim": 1280, "added_kv_proj_dim": 5120}
    ),
    "wan2.2-ti2v-5b": Architecture(
        "WanTransformer3DModel",
        {
            "num_attention_heads": 24,
            "ffn_dim": 14336,
            "num_layers": 30,
            "in_channels": 48,
            "out_channels": 48,
        },
    ),
    "sdxl": Architecture(
        "UNet2DConditionModel",
        {
            **_SDXL_BLOCKS,
            "sample_size": 128,
            "block_out_channels": (320, 640, 1280),
            "layers_per_block": 2,
            "cross_attention_dim": 2048,
            "attention_head_dim": (5, 10, 20),
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
            "transformer_layers_per_block": (1, 2, 10),
        },
    ),
    "qwen-image": Architecture("QwenImageTransformer2DModel"),
    "hunyuan-video": Architecture("HunyuanVideoTransformer3DModel"),
    "ltx-video": Architecture("LTXVideoTransformer3DModel"),
    "ltx-video-13b": Architecture(
        "LTXVideoTransformer3DModel",
        {"attention_head_dim": 128, "cross_attention_dim": 4096, "num_layers": 48},
    ),
    "z-image": Architecture("ZImageTransformer2DModel"),
    "sd3.5-large": Architecture(
        "SD3Transformer2DModel",
        {
            "sample_size": 128,
            "patch_size": 2,
            "in_channels": 16,
            "out_channels": 16,
            "num_layers": 38,
            "attention_head_dim": 64,
            "num_attention_heads": 38,
            "joint_attention_dim": 4096,
            "caption_projection_dim": 2432,
            "pooled_projection_dim": 2048,
            "pos_embed_max_size": 192,
            "qk_norm": "rms_norm",
        },
    ),
    "sd1.5": Architecture(
        "UNet2DConditionModel",
        {
            "sample_size": 64,
            "in_channels": 4,
            "out_channels": 4,
            "down_block_types": ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
            "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
            "block_out_channels": (320, 640, 1280, 1280),
            "layers_per_block": 2,
            "cross_attention_dim": 768,
            "attention_head_dim": 8,
        },
    ),
    "flux.1-dev-mini": Architecture(
        "FluxTransformer2DModel",
        {
            "num_layers": 3,
            "num_single_layers": 6,
            "num_attention_heads": 4,
            "attention_head_dim": 32,
            "axes_dims_rope": (8, 12, 12),
            "joint_attention_dim": 64,
            "pooled_projection_dim": 64,
            "guidance_embeds": True,
        },
    ),
    "flux.2-dev-mini": Architecture(
        "Flux2Transformer2DModel",
        {
            "num_layers": 2,
            "num_single_layers": 6,
            "num_attention_heads": 4,
            "attention_head_dim": 32,
            "axes_dims_rope": (8, 8, 8, 8),
            "joint_attention_dim": 192,
        },
    ),
    "wan2.1-t2v-1.3b-mini": Architecture(
        "WanTransformer3DModel",
        {
            "num_attention_heads": 4,
            "attention_head_dim": 32,
            "ffn_dim": 512,
            "num_layers": 8,
            "text_dim": 64,
            "freq_dim": 64,
        },
    ),
    "sdxl-mini": Architecture(
        "UNet2DConditionModel",
        {
            **_SDXL_BLOCKS,
            "sample_size": 16,
            "block_out_channels": (32, 64, 128),
            "layers_per_block": 1,
            "cross_attention_dim": 128,
            "attention_head_dim": (1, 2, 4),
            "addition_time_embed_dim": 32,
            "projection_class_embeddings_input_dim": 256,
            "transformer_layers_per_block": (1, 1, 2),
        },
    ),
    "qwen-image-mini": Architecture(
        "QwenImageTransformer2DModel",
        {
            "num_layers": 6,
            "num_attention_heads": 4,
            "attention_head_dim": 32,
            "axes_dims_rope": (8, 12, 12),
            "joint_attention_dim": 64,
        },
    ),
}
