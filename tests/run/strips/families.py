"""One narrow VAE of each family that diffusers has, with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import diffusers
import torch

from tightfit.adapters.diffusers_vae import adapt
from tightfit.run.vae import Vae

_FOUR: dict[str, Any] = {"block_out_channels": (8,) * 4, "layers_per_block": 1}
_PICTURE: dict[str, Any] = {
    "block_out_channels": (8, 16, 16),
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "latent_channels": 4,
}
_WAN: dict[str, Any] = {"base_dim": 4, "dim_mult": [1, 2, 2, 2], "num_res_blocks": 1, "z_dim": 4}


@dataclass(frozen=True)
class Family:
    """A class, arguments that make it small, and a small latent and sample [1,C,…]."""

    name: str
    arguments: dict[str, Any]
    latent: tuple[int, ...]
    samples: tuple[int, ...]

    def build(self, dtype: torch.dtype = torch.float32) -> Vae:
        """Seeded."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            module = getattr(diffusers, self.name)(**self.arguments)
        return adapt(module.eval().requires_grad_(False).to(dtype))


FAMILIES = {
    "flux": Family(
        "AutoencoderKL",
        {**_PICTURE, "use_quant_conv": False, "use_post_quant_conv": False},
        (1, 4, 13, 10),
        (1, 3, 52, 40),
    ),
    "sdxl": Family("AutoencoderKL", _PICTURE, (1, 4, 9, 14), (1, 3, 36, 56)),
    "flux.2": Family(
        "AutoencoderKLFlux2",
        {**_FOUR, "norm_num_groups": 4, "latent_channels": 4},
        (1, 4, 9, 8),
        (1, 3, 72, 64),
    ),
    "wan2.1": Family("AutoencoderKLWan", _WAN, (1, 4, 2, 7, 6), (1, 3, 5, 56, 40)),
    "wan2.2": Family(
        "AutoencoderKLWan",
        {
            **_WAN,
            "decoder_base_dim": 4,
            "is_residual": True,
            "patch_size": 2,
            "in_channels": 12,
            "out_channels": 12,
            "scale_factor_spatial": 16,
        },
        (1, 4, 2, 5, 4),
        (1, 3, 5, 80, 64),
    ),
    "qwen": Family("AutoencoderKLQwenImage", _WAN, (1, 4, 1, 9, 7), (1, 3, 1, 72, 56)),
    "hunyuan": Family(
        "AutoencoderKLHunyuanVideo",
        {**_FOUR, "norm_num_groups": 4, "latent_channels": 4},
        (1, 4, 2, 6, 5),
        (1, 3, 5, 48, 40),
    ),
    "ltx": Family(
        "AutoencoderKLLTXVideo",
        {
            "block_out_channels": (8, 8, 8, 8),
            "decoder_block_out_channels": (8, 8, 8, 8),
            "layers_per_block": (1, 1, 1, 1, 1),
            "decoder_layers_per_block": (1, 1, 1, 1, 1),
            "latent_channels": 4,
        },
        (1, 4, 2, 5, 4),
        (1, 3, 9, 160, 128),
    ),
}
