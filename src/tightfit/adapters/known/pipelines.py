"""The pipelines we know by name: their parts, in the order of their stages, and a usual job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tightfit.adapters.known.architectures import (
    ARCHITECTURES,
    LTX_13B_VAE,
    SD15_VAE,
    SD35_VAE,
    Architecture,
)
from tightfit.adapters.known.denoisers import DENOISERS
from tightfit.adapters.known.encoders import ENCODERS
from tightfit.plan.size import Size

_SQUARE = Size(1024, 1024)
_CLIP = Size(832, 480, frames=81)
_SMALL = Size(128, 128)


@dataclass(frozen=True)
class Pipeline:
    """A pipeline that can be built without a file.

    Attributes:
        class_name: of diffusers.
        parts: by the names that diffusers gives them, in the order of the stages.
        size: what it is usually asked for.
    """

    class_name: str
    parts: Mapping[str, Architecture]
    size: Size


def _pipeline(
    name: str, class_name: str, encoders: Mapping[str, str], vae: str | Architecture, *, size: Size
) -> tuple[str, Pipeline]:
    denoiser = DENOISERS[name]
    slot = "unet" if denoiser.class_name == "UNet2DConditionModel" else "transformer"
    texts = {part: ENCODERS[encoder] for part, encoder in encoders.items()}
    decoder = ARCHITECTURES[vae] if isinstance(vae, str) else vae
    return name, Pipeline(class_name, {**texts, slot: denoiser, "vae": decoder}, size)


_FLUX = {"text_encoder": "clip-l", "text_encoder_2": "t5-xxl"}
_WAN = {"text_encoder": "umt5-xxl"}
_T5 = {"text_encoder": "t5-xxl"}

PIPELINES = dict(
    (
        _pipeline("flux.1-dev", "FluxPipeline", _FLUX, "flux-vae", size=_SQUARE),
        _pipeline("flux.1-schnell", "FluxPipeline", _FLUX, "flux-vae", size=_SQUARE),
        _pipeline(
            "flux.2-dev",
            "Flux2Pipeline",
            {"text_encoder": "mistral-small-3.2-24b"},
            "flux.2-vae",
            size=_SQUARE,
        ),
        _pipeline(
            "flux.2-klein-4b",
            "Flux2KleinPipeline",
            {"text_encoder": "qwen3-4b"},
            "flux.2-vae",
            size=_SQUARE,
        ),
        _pipeline(
            "flux.2-klein-9b",
            "Flux2KleinPipeline",
            {"text_encoder": "qwen3-8b"},
            "flux.2-vae",
            size=_SQUARE,
        ),
        _pipeline("wan2.1-t2v-1.3b", "WanPipeline", _WAN, "wan2.1-vae", size=_CLIP),
        _pipeline("wan2.1-t2v-14b", "WanPipeline", _WAN, "wan2.1-vae", size=_CLIP),
        _pipeline(
            "wan2.1-i2v-14b",
            "WanImageToVideoPipeline",
            {**_WAN, "image_encoder": "clip-vision-h"},
            "wan2.1-vae",
            size=_CLIP,
        ),
        _pipeline(
            "wan2.2-ti2v-5b", "WanPipeline", _WAN, "wan2.2-vae", size=Size(1280, 704, frames=121)
        ),
        _pipeline(
            "sdxl",
            "StableDiffusionXLPipeline",
            {"text_encoder": "clip-l", "text_encoder_2": "openclip-bigg"},
            "sdxl-vae",
            size=_SQUARE,
        ),
        _pipeline(
            "qwen-image",
            "QwenImagePipeline",
            {"text_encoder": "qwen2.5-vl-7b"},
            "qwen-image-vae",
            size=Size(1328, 1328),
        ),
        _pipeline(
            "hunyuan-video",
            "HunyuanVideoPipeline",
            {"text_encoder": "llama-3-8b", "text_encoder_2": "clip-l"},
            "hunyuan-video-vae",
            size=Size(960, 544, frames=61),
        ),
        _pipeline(
            "ltx-video", "LTXPipeline", _T5, "ltx-video-vae", size=Size(768, 512, frames=161)
        ),
        _pipeline(
            "ltx-video-13b", "LTXPipeline", _T5, LTX_13B_VAE, size=Size(768, 512, frames=161)
        ),
        _pipeline(
            "z-image", "ZImagePipeline", {"text_encoder": "qwen3-4b-body"}, "flux-vae", size=_SQUARE
        ),
        _pipeline(
            "sd3.5-large",
            "StableDiffusion3Pipeline",
            {
                "text_encoder": "clip-l-projection",
                "text_encoder_2": "openclip-bigg",
                "text_encoder_3": "t5-xxl",
            },
            SD35_VAE,
            size=_SQUARE,
        ),
        _pipeline(
            "sd1.5",
            "StableDiffusionPipeline",
            {"text_encoder": "clip-l"},
            SD15_VAE,
            size=Size(512, 512),
        ),
        _pipeline(
            "flux.1-dev-mini",
            "FluxPipeline",
            {"text_encoder": "clip-mini", "text_encoder_2": "t5-mini"},
            "flux-vae-mini",
            size=_SMALL,
        ),
        _pipeline(
            "flux.2-dev-mini",
            "Flux2Pipeline",
            {"text_encoder": "mistral-small-mini"},
            "flux.2-vae-mini",
            size=_SMALL,
        ),
        _pipeline(
            "wan2.1-t2v-1.3b-mini",
            "WanPipeline",
            {"text_encoder": "umt5-mini"},
            "wan2.1-vae-mini",
            size=Size(64, 64, frames=5),
        ),
        _pipeline(
            "sdxl-mini",
            "StableDiffusionXLPipeline",
            {"text_encoder": "clip-mini", "text_encoder_2": "clip-projection-mini"},
            "sdxl-vae-mini",
            size=_SMALL,
        ),
        _pipeline(
            "qwen-image-mini",
            "QwenImagePipeline",
            {"text_encoder": "qwen2.5-vl-mini"},
            "qwen-image-vae-mini",
            size=_SMALL,
        ),
    )
)
