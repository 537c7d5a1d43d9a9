"""From pixels to latents and tokens: which sizes a part takes, and how long its sequences are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tightfit.adapters.known.pipelines import PIPELINES
from tightfit.adapters.parts import DECODE, DENOISE, ENCODE_IMAGE, Part, full_config
from tightfit.adapters.traits import SUPPORTED, traits_of
from tightfit.errors import InputError, UsageError
from tightfit.plan.size import Size
from tightfit.run.vae import Traits

_TEXT_TOKENS = {
    "FluxTransformer2DModel": 512,
    "Flux2Transformer2DModel": 512,
    "WanTransformer3DModel": 512,
    "QwenImageTransformer2DModel": 512,
    "UNet2DConditionModel": 77,
    "HunyuanVideoTransformer3DModel": 256,
    "LTXVideoTransformer3DModel": 128,
    "ZImageTransformer2DModel": 512,
    "SD3Transformer2DModel": 77 + 256,
    "CLIPTextModel": 77,
    "CLIPTextModelWithProjection": 77,
    "Qwen2_5_VLForConditionalGeneration": 34 + 512,  # with the template around a prompt
    "LlamaModel": 95 + 256,
}
_OTHERS = 512
_SHORTER_T5 = {"StableDiffusion3Pipeline": 256, "LTXPipeline": 128, "LTXConditionPipeline": 128}


@dataclass(frozen=True)
class Grid:
    """How the pixels of a job become what a denoiser works on.

    Attributes:
        spatial: pixels per latent pixel, on each side.
        patch: latent pixels per token, on each side.
        temporal: frames per latent frame; None for a denoiser of pictures. The first latent frame
            stands for one frame alone.
        largest: pixels that a side can have where the network's position table ends.
    """

    spatial: int = 8
    patch: int = 2
    temporal: int | None = None
    largest: int | None = None

    def latent(self, size: Size) -> tuple[int, int, int]:
        """Latent frames, height and width of a size that `cast_sizes` gave."""
        frames = 1 if self.temporal is None else (size.frames - 1) // self.temporal + 1
        return frames, size.height // self.spatial, size.width // self.spatial

    def tokens(self, size: Size) -> tuple[int, int, int]:
        """Tokens in time, height and width."""
        frames, height, width = self.latent(size)
        return frames, height // self.patch, width // self.patch


@dataclass(frozen=True)
class Tokens:
    """How long the sequences of one item are.

    Attributes:
        text: tokens of the prompt, padded as the pipeline pads them.
        image: tokens of the picture or clip (latent pixels for a network of convolutions).
    """

    text: int
    image: int


def seq_lengths(part: Part, size: Size) -> Tokens:
    """Tokens of text and image that one forward on one item sees.

    Text is what the pipeline pads or cuts a prompt to when nothing else is asked for: 512 for FLUX,
    FLUX.2, Wan, Qwen-Image and Z-Image; 77 for SD and SDXL; 77 + 256 for SD3; 256 for HunyuanVideo;
    128 for LTX. An encoder's are those of its pipeline (77 for CLIP, 512 for T5), with the template
    around a prompt: 95 more for HunyuanVideo, 34 for Qwen-Image. An encoder sees no image, but an
    image encoder sees its own fixed one.
    """
    text = _SHORTER_T5.get(part.pipeline_class or "") if part.class_name == "T5EncoderModel" else 0
    text = text or _TEXT_TOKENS.get(part.class_name, _OTHERS)
    if part.stage == ENCODE_IMAGE:
        side = part.config.get("image_size", 224) // part.config.get("patch_size", 14)
        return Tokens(0, side**2 + 1)
    if part.stage == DECODE:
        traits = vae_traits(part)
        latent = traits.latent_sizes(_samples(traits, cast_sizes(part, size)))
        return Tokens(0, _product(latent))
    if part.stage == DENOISE:
        return Tokens(text, _product(grid_of(part).tokens(cast_sizes(part, size))))
    return Tokens(text, 0)


def cast_sizes(part: Part, size: Size) -> Size:
    """The nearest size that `part` takes: sides and frames are padded up, never cut.

    Sides become a multiple of 16 for most denoisers (8 for SD and SDXL, 32 for LTX and Wan 2.2),
    frames 1 + a multiple of 4 (of 8 for LTX). An encoder takes every size. What was padded is told
    by `padding`.

    Raises `UsageError` for more than one frame where pictures are made, and for sides beyond the
    network's position table.
    """
    if part.stage == DECODE:
        traits = vae_traits(part)
        *time, height, width = traits.padded(_samples(traits, size))
        return replace(size, width=width, height=height, frames=time[0] if time else size.frames)
    if part.stage != DENOISE:
        return size
    grid = grid_of(part)
    if grid.temporal is None and size.frames > 1:
        raise UsageError(f"{part.class_name} makes pictures, not {size.frames} frames at once.")
    step = grid.spatial * grid.patch
    lead = -(-(size.frames - 1) // (grid.temporal or 1)) * (grid.temporal or 1)
    cast = replace(
        size,
        width=-(-size.width // step) * step,
        height=-(-size.height // step) * step,
        frames=1 + lead,
    )
    if grid.largest is not None and max(cast.width, cast.height) > grid.largest:
        raise UsageError(
            f"{part.class_name} takes sides of up to {grid.largest} pixels, not "
            f"{size.width}x{size.height}."
        )
    return cast


def padding(asked: Size, cast: Size) -> tuple[str, ...]:
    """What was padded from `asked` to `cast`, a phrase for each."""
    notes = []
    if (asked.width, asked.height) != (cast.width, cast.height):
        notes.append(f"padded {asked.width}x{asked.height} to {cast.width}x{cast.height}")
    if asked.frames != cast.frames:
        notes.append(f"padded {asked.frames} frames to {cast.frames}")
    return tuple(notes)


def usual_size(part: Part) -> Size:
    """What a part's pipeline is usually asked for."""
    known = PIPELINES.get(part.pipeline)
    if known is not None:
        return known.size
    for pipeline in PIPELINES.values():
        if pipeline.class_name == part.pipeline_class or any(
            other.class_name == part.class_name for other in pipeline.parts.values()
        ):
            return pipeline.size
    return Size(1024, 1024)


def grid_of(part: Part) -> Grid:
    """How a denoiser sees a picture or a clip. Raises `InputError` for a class not known here."""
    maker = _GRIDS.get(part.class_name)
    if maker is None:
        raise not_predicted(part.class_name, _GRIDS)
    return maker(full_config(part))


def not_predicted(class_name: str, known: Iterable[str]) -> InputError:
    """The error for a class that is not among those whose calls are `known`."""
    return InputError(
        f"How `{class_name}` is called is not known here, so its activations are not predicted; "
        f"known are {', '.join(known)}."
    )


def vae_traits(part: Part) -> Traits:
    """What the shapes of a VAE mean. Raises `InputError` for a class that is not known here."""
    config = full_config(part) if part.class_name in SUPPORTED else {}
    return traits_of(part.class_name, config)


def _samples(traits: Traits, size: Size) -> tuple[int, ...]:
    return (size.frames, size.height, size.width)[-traits.axes :]


def _product(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _wan(config: Mapping[str, Any]) -> Grid:
    patch = config["patch_size"][1]
    spatial = 16 if config["in_channels"] == 48 else 8
    return Grid(spatial, patch, 4, config["rope_max_seq_len"] * patch * spatial)


def _z_image(config: Mapping[str, Any]) -> Grid:
    patch = config["all_patch_size"][0]
    return Grid(8, patch, None, min(config["axes_lens"][1:]) * patch * 8)


def _sd3(config: Mapping[str, Any]) -> Grid:
    patch = config["patch_size"]
    return Grid(8, patch, None, config["pos_embed_max_size"] * patch * 8)


_GRIDS: dict[str, Callable[[Mapping[str, Any]], Grid]] = {
    "FluxTransformer2DModel": lambda _: Grid(),
    "Flux2Transformer2DModel": lambda _: Grid(),
    "QwenImageTransformer2DModel": lambda _: Grid(),
    "WanTransformer3DModel": _wan,
    "UNet2DConditionModel": lambda _: Grid(patch=1),
    "HunyuanVideoTransformer3DModel": lambda config: Grid(8, config["patch_size"], 4),
    "LTXVideoTransformer3DModel": lambda _: Grid(32, 1, 8),
    "ZImageTransformer2DModel": _z_image,
    "SD3Transformer2DModel": _sd3,
}
