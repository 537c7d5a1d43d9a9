"""What can be built without a file, and the VAEs we know by name: class, arguments, true size.

Origin: class defaults of diffusers 0.42, its conversion scripts and the public model
configurations, confirmed by their parameter counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tightfit.errors import UsageError

_FOUR_STAGES: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "sample_size": 1024,
}
_FLUX: dict[str, Any] = {
    **_FOUR_STAGES,
    "latent_channels": 16,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "force_upcast": True,
}


@dataclass(frozen=True)
class Architecture:
    """A network that can be built without a file.

    Attributes:
        class_name: of `library`.
        arguments: of its constructor (diffusers) or of its configuration (transformers).
        library: ``diffusers`` or ``transformers``.
    """

    class_name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    library: str = "diffusers"


_SDXL: dict[str, Any] = {
    **_FOUR_STAGES,
    "latent_channels": 4,
    "scaling_factor": 0.13025,
    "force_upcast": True,
}
_MINI: dict[str, Any] = {"block_out_channels": (16, 32, 64, 64), "norm_num_groups": 16}

ARCHITECTURES = {
    "wan2.1-vae": Architecture("AutoencoderKLWan"),
    "wan2.2-vae": Architecture(
        "AutoencoderKLWan",
        {
            "base_dim": 160,
            "decoder_base_dim": 256,
            "z_dim": 48,
            "is_residual": True,
            "in_channels": 12,
            "out_channels": 12,
            "patch_size": 2,
            "scale_factor_temporal": 4,
            "scale_factor_spatial": 16,
            "latents_mean": [0.0] * 48,
            "latents_std": [1.0] * 48,
        },
    ),
    "flux-vae": Architecture("AutoencoderKL", _FLUX),
    "flux.2-vae": Architecture("AutoencoderKLFlux2"),
    "sdxl-vae": Architecture("AutoencoderKL", _SDXL),
    "qwen-image-vae": Architecture("AutoencoderKLQwenImage"),
    "hunyuan-video-vae": Architecture("AutoencoderKLHunyuanVideo"),
    "ltx-video-vae": Architecture("AutoencoderKLLTXVideo"),
    "wan2.1-vae-mini": Architecture("AutoencoderKLWan", {"base_dim": 8}),
    "flux-vae-mini": Architecture("AutoencoderKL", {**_FLUX, **_MINI}),
    "flux.2-vae-mini": Architecture("AutoencoderKLFlux2", _MINI),
    "sdxl-vae-mini": Architecture("AutoencoderKL", {**_SDXL, **_MINI}),
    "qwen-image-vae-mini": Architecture("AutoencoderKLQwenImage", {"base_dim": 8}),
}

SOUND = {
    "stable-audio-vae": Architecture("AutoencoderOobleck"),
    "stable-audio-vae-mini": Architecture(
        "AutoencoderOobleck",
        {"encoder_hidden_size": 16, "decoder_input_channels": 8, "decoder_channels": 8},
    ),
}
"""VAEs of sound: coded by `encode` and `decode`, but parts of no pipeline that is planned."""

# Of one pipeline each, and told from their next of kin by no weight: parts, but no names of VAEs.
SD15_VAE = Architecture(
    "AutoencoderKL",
    {**_FOUR_STAGES, "latent_channels": 4, "sample_size": 512, "scaling_factor": 0.18215},
)
SD35_VAE = Architecture(
    "AutoencoderKL", {**_FLUX, "scaling_factor": 1.5305, "shift_factor": 0.0609}
)
LTX_13B_VAE = Architecture(
    "AutoencoderKLLTXVideo",
    {
        "block_out_channels": (128, 256, 512, 1024, 2048),
        "down_block_types": ("LTXVideo095DownBlock3D",) * 4,
        "decoder_block_out_channels": (256, 512, 1024),
        "layers_per_block": (4, 6, 6, 2, 2),
        "decoder_layers_per_block": (5, 5, 5, 5),
        "spatio_temporal_scaling": (True,) * 4,
        "decoder_spatio_temporal_scaling": (True,) * 3,
        "decoder_inject_noise": (False,) * 4,
        "downsample_type": ("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
        "upsample_residual": (True,) * 3,
        "upsample_factor": (2, 2, 2),
        "timestep_conditioning": True,
        "spatial_compression_ratio": 32,
        "temporal_compression_ratio": 8,
    },
)


def architecture(name: str) -> Architecture:
    """The VAE called `name`. Raises `UsageError` that lists the names."""
    known = ARCHITECTURES.get(name) or SOUND.get(name)
    if known is None:
        names = ", ".join((*ARCHITECTURES, *SOUND))
        raise UsageError(f"VAE `random:{name}` is unknown: use one of {names}.")
    return known
