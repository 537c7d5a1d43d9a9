"""Pipelines of diffusers, whole but tiny; seeded random weights, tokenizers that count letters."""

from __future__ import annotations

import functools
from typing import Any

import torch


class Letters:
    """A tokenizer: every letter is a token."""

    model_max_length = 16
    added_tokens_encoder: dict[str, int] = {}  # noqa: RUF012

    def tokenize(self, text: str) -> list[str]:
        return list(text)

    def __call__(self, text: str | list[str], *, max_length: int = 16, **kwargs: Any) -> Any:
        del kwargs
        texts = [text] if isinstance(text, str) else text
        ids = torch.zeros(len(texts), max_length, dtype=torch.long)
        for row, one in zip(ids, texts, strict=True):
            letters = [1 + ord(letter) % 60 for letter in one][: max_length - 1]
            row[: len(letters)] = torch.tensor(letters)
            row[len(letters)] = 63
        return _Encoded(input_ids=ids, attention_mask=(ids > 0).long())

    def batch_decode(self, ids: torch.Tensor, **kwargs: Any) -> list[str]:
        del kwargs
        return ["" for _ in ids]


class _Encoded(dict[str, torch.Tensor]):
    def __getattr__(self, name: str) -> torch.Tensor:
        return self[name]


def _seeded(make: Any) -> Any:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        state = torch.get_rng_state()
        torch.manual_seed(0)
        try:
            pipe = make(*args, **kwargs)
        finally:
            torch.set_rng_state(state)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    return made


def _clip(width: int = 32, *, projection: bool = False) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=3,
        num_attention_heads=4,
        vocab_size=64,
        max_position_embeddings=16,
        projection_dim=width,
        eos_token_id=63,
    )
    kind = CLIPTextModelWithProjection if projection else CLIPTextModel
    return kind(config).eval()


def _t5(width: int = 32, kind: str = "T5EncoderModel") -> Any:
    import transformers

    config = transformers.T5Config(
        vocab_size=64, d_model=width, d_kv=8, d_ff=2 * width, num_layers=3, num_heads=4
    )
    if kind == "UMT5EncoderModel":
        config = transformers.UMT5Config(**config.to_dict())
    return getattr(transformers, kind)(config).eval()


def _vae(channels: int) -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16),
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=4,
        sample_size=64,
        scaling_factor=0.5,
        shift_factor=0.0,
        use_quant_conv=False,
        use_post_quant_conv=False,
    ).eval()


@_seeded
def flux() -> Any:
    """Two text encoders, double and single blocks, a VAE of 16 channels."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    transformer = FluxTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    ).eval()
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=_vae(4),
        text_encoder=_clip(),
        tokenizer=Letters(),
        text_encoder_2=_t5(),
        tokenizer_2=Letters(),
        transformer=transformer,
    )


@_seeded
def sdxl() -> Any:
    """Guided in one batch of two, by a UNet."""
    from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel

    unet = UNet2DConditionModel(
        sample_size=32,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(16, 32),
        norm_num_groups=4,
        layers_per_block=1,
        cross_attention_dim=64,
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=32 + 6 * 8,
    ).eval()
    return StableDiffusionXLPipeline(
        vae=_vae(4),
        text_encoder=_clip(),
        text_encoder_2=_clip(projection=True),
        tokenizer=Letters(),
        tokenizer_2=Letters(),
        unet=unet,
        scheduler=EulerDiscreteScheduler(),
        add_watermarker=False,
    )


@_seeded
def wan() -> Any:
    """A clip, by a causal VAE."""
    from diffusers import (
        AutoencoderKLWan,
        FlowMatchEulerDiscreteScheduler,
        WanPipeline,
        WanTransformer3DModel,
    )

    return WanPipeline(
        tokenizer=Letters(),
        text_encoder=_t5(kind="UMT5EncoderModel"),
        transformer=WanTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=16,
            out_channels=16,
            text_dim=32,
            freq_dim=32,
            ffn_dim=32,
            num_layers=3,
            cross_attn_norm=True,
            qk_norm="rms_norm_across_heads",
        ).eval(),
        vae=AutoencoderKLWan(base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1,
                             temperal_downsample=[False, True, True]).eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )  # fmt: skip
