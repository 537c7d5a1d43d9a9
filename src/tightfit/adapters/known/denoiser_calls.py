"""How each denoiser is called by its pipeline, in shapes; diffusers 0.42."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tightfit.adapters.known.asks import Ask
from tightfit.errors import InputError

_FRAMES_PER_SECOND = 25


def _flux(ask: Ask) -> object:
    config, fill = ask.config, ask.fill
    _, height, width = ask.tokens
    return ask.module(
        hidden_states=fill.noise(ask.batch, height * width, config.in_channels),
        timestep=fill.level(ask.batch),
        guidance=_guidance(ask, torch.float32),
        pooled_projections=fill.noise(ask.batch, config.pooled_projection_dim),
        encoder_hidden_states=ask.prompt(config.joint_attention_dim),
        txt_ids=fill.put(torch.zeros(ask.text, 3), dtype=fill.dtype),
        img_ids=fill.put(_places(1, height, width), dtype=fill.dtype),
        return_dict=False,
    )


def _flux2(ask: Ask) -> object:
    config, fill = ask.config, ask.fill
    _, height, width = ask.tokens
    words, spots = _places(1, 1, 1, ask.text), _places(1, height, width, 1)
    return ask.module(
        hidden_states=fill.noise(ask.batch, height * width, config.in_channels),
        timestep=fill.level(ask.batch),
        guidance=_guidance(ask, torch.float32),
        encoder_hidden_states=ask.prompt(config.joint_attention_dim),
        txt_ids=fill.put(words.expand(ask.batch, -1, -1)),
        img_ids=fill.put(spots.expand(ask.batch, -1, -1)),
        return_dict=False,
    )


def _wan(ask: Ask) -> object:
    config, fill = ask.config, ask.fill
    more = {}
    if config.image_dim is not None:
        more["encoder_hidden_states_image"] = fill.noise(ask.batch, 257, config.image_dim)
    time = fill.put(torch.full((ask.batch,), 500.0))
    if config.in_channels == 48:  # Wan 2.2 5B is told the noise of each token
        frames, height, width = ask.tokens
        time = time.unsqueeze(1).expand(-1, frames * height * width)
    return ask.module(
        hidden_states=fill.noise(ask.batch, config.in_channels, *ask.latent),
        timestep=time,
        encoder_hidden_states=ask.prompt(config.text_dim),
        return_dict=False,
        **more,
    )


def _qwen(ask: Ask) -> object:
    config, fill = ask.config, ask.fill
    _, height, width = ask.tokens
    return ask.module(
        hidden_states=fill.noise(ask.batch, height * width, config.in_channels),
        timestep=fill.level(ask.batch),
        guidance=_guidance(ask, torch.float32),
        encoder_hidden_states=ask.prompt(config.joint_attention_dim),
        img_shapes=[[(1, height, width)]] * ask.batch,
        return_dict=False,
    )


def _unet(ask: Ask) -> object:
    config, fill = ask.config, ask.fill
    added = None
    if config.addition_embed_type == "text_time":
        pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
        size = [ask.size.height, ask.size.width]
        times = torch.tensor([[*size, 0, 0, *size]]).expand(ask.batch, -1)
        added = {
            "text_embeds": fill.noise(ask.batch, pooled),
            "time_ids": fill.put(times, dtype=fill.dtype),
        }
    elif config.addition_embed_type is not None:
        raise InputError(f"A UNet with `{config.addition_embed_type}` added is not known here.")
    return ask.module(
        fill.noise(ask.batch, config.in_channels, *ask.latent[1:]),
        fill.put(torch.tensor(500)),
        encoder_hidden_states=ask.prompt(config.cross_attention_dim),
        added_cond_kwargs=added,
        return_dict=False,
    )


def _hunyuan(ask: Ask) -> object:
    config, fill = ask.config, ask.fill
    return ask.module(
        hidden_states=fill.noise(ask.batch, config.in_channels, *ask.latent),
        timestep=fill.put(torch.full((ask.batch,), 500.0)),
        encoder_hidden_states=ask.prompt(config.text_embed_dim),
        encoder_attention_mask=fill.put(torch.ones(ask.batch, ask.text), dtype=fill.dtype),
        pooled_projections=fill.noise(ask.batch, config.pooled_projection_dim),
        guidance=_guidance(ask, None),
        return_dict=False,
    )


def _ltx(ask: Ask) -> object:
    config, fill = ask.config, ask.fill
    frames, height, width = ask.tokens
    assert ask.grid is not None
    spatial, temporal = ask.grid.spatial, ask.grid.temporal or 1
    return ask.module(
        hidden_states=fill.noise(ask.batch, frames * height * width, config.in_channels),
        encoder_hidden_states=ask.prompt(config.caption_channels),
        timestep=fill.put(torch.full((ask.batch,), 500.0)),
        encoder_attention_mask=fill.put(torch.ones(ask.batch, ask.text, dtype=torch.long)),
        num_frames=frames,
        height=height,
        width=width,
        rope_interpolation_scale=(temporal / _FRAMES_PER_SECOND, spatial, spatial),
        return_dict=False,
    )


def _z_image(ask: Ask) -> object:
    config, fill = ask.config, ask.fill
    _, height, width = ask.latent
    latents = fill.noise(ask.batch, config.in_channels, 1, height, width)
    return ask.module(
        list(latents.unbind()),
        fill.level(ask.batch, dtype=torch.float32),
        list(ask.prompt(config.cap_feat_dim).unbind()),
        return_dict=False,
    )


def _sd3(ask: Ask) -> object:
    config, fill = ask.config, ask.fill
    return ask.module(
        hidden_states=fill.noise(ask.batch, config.in_channels, *ask.latent[1:]),
        timestep=fill.put(torch.full((ask.batch,), 500.0)),
        encoder_hidden_states=ask.prompt(config.joint_attention_dim),
        pooled_projections=fill.noise(ask.batch, config.pooled_projection_dim),
        return_dict=False,
    )


def _guidance(ask: Ask, dtype: torch.dtype | None) -> torch.Tensor | None:
    if not getattr(ask.config, "guidance_embeds", False):
        return None
    return ask.fill.level(ask.batch, dtype=dtype)


def _places(*sizes: int) -> torch.Tensor:
    """Every place of a grid, one a row, the last axis fastest."""
    return torch.cartesian_prod(*map(torch.arange, sizes))


DENOISE_CALLS: dict[str, Callable[[Ask], object]] = {
    "FluxTransformer2DModel": _flux,
    "Flux2Transformer2DModel": _flux2,
    "WanTransformer3DModel": _wan,
    "QwenImageTransformer2DModel": _qwen,
    "UNet2DConditionModel": _unet,
    "HunyuanVideoTransformer3DModel": _hunyuan,
    "LTXVideoTransformer3DModel": _ltx,
    "ZImageTransformer2DModel": _z_image,
    "SD3Transformer2DModel": _sd3,
}
