"""From a diffusers configuration to what the shapes of its VAE mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tightfit.errors import InputError
from tightfit.run.vae import Traits

Config = Mapping[str, Any]


def traits_of(class_name: str, config: Config) -> Traits:
    """Traits of a VAE of diffusers from its class and configuration, without its weights.

    Raises `InputError` for a class that is not known here.
    """
    maker = _MAKERS.get(class_name)
    if maker is None:
        raise InputError(
            f"VAE class `{class_name}` is not supported: supported are {', '.join(_MAKERS)}."
        )
    return maker(class_name, config)


def _picture(name: str, config: Config) -> Traits:
    return Traits(
        name,
        spatial=2 ** (len(config["block_out_channels"]) - 1),
        channels=config["in_channels"],
        latent_channels=config["latent_channels"],
        scale=_numbers(config.get("scaling_factor")),
        shift=_numbers(config.get("shift_factor")),
    )


def _wan(name: str, config: Config) -> Traits:
    patch = config.get("patch_size") or 1
    channels = config.get("input_channels", config.get("in_channels", 3))
    return Traits(
        name,
        spatial=2 ** (len(config["dim_mult"]) - 1) * patch,
        temporal=2 ** sum(map(bool, config["temperal_downsample"])),
        axes=3,
        channels=channels // patch**2,
        latent_channels=config["z_dim"],
        lead=True,
        streams_time=True,
        scale=tuple(1 / float(std) for std in config["latents_std"]),
        shift=_numbers(config["latents_mean"]),
    )


def _hunyuan(name: str, config: Config) -> Traits:
    """A VAE of few blocks compresses less than its configuration says: each block halves once, and
    the last one leaves time alone."""
    blocks = len(config["block_out_channels"])
    return Traits(
        name,
        spatial=min(config["spatial_compression_ratio"], 2**blocks),
        temporal=min(config["temporal_compression_ratio"], 2 ** (blocks - 1)),
        axes=3,
        channels=config["in_channels"],
        latent_channels=config["latent_channels"],
        lead=True,
        scale=_numbers(config["scaling_factor"]),
    )


def _ltx(name: str, config: Config) -> Traits:
    halvings = sum(map(bool, config["spatio_temporal_scaling"]))
    spatial = config.get("spatial_compression_ratio") or config["patch_size"] * 2**halvings
    temporal = config.get("temporal_compression_ratio") or config["patch_size_t"] * 2**halvings
    return Traits(
        name,
        spatial=spatial,
        temporal=temporal,
        axes=3,
        channels=config["in_channels"],
        latent_channels=config["latent_channels"],
        lead=True,
        scale=_numbers(config["scaling_factor"]),
    )


def _sound(name: str, config: Config) -> Traits:
    return Traits(
        name,
        spatial=math.prod(config["downsampling_ratios"]),
        axes=1,
        channels=config["audio_channels"],
        latent_channels=config["decoder_input_channels"],
        rate=config["sampling_rate"],
    )


def _numbers(value: Any) -> tuple[float, ...]:
    if value is None:
        return ()
    values = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(float(number) for number in values if math.isfinite(float(number)))


_MAKERS: dict[str, Callable[[str, Config], Traits]] = {
    "AutoencoderKL": _picture,
    "AutoencoderKLFlux2": _picture,
    "AutoencoderKLWan": _wan,
    "AutoencoderKLQwenImage": _wan,
    "AutoencoderKLHunyuanVideo": _hunyuan,
    "AutoencoderKLLTXVideo": _ltx,
    "AutoencoderOobleck": _sound,
}
SUPPORTED = tuple(_MAKERS)
