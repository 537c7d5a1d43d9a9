"""Every part of every pipeline is called as its pipeline calls it, at true shapes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import diffusers
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tightfit.adapters import (
    Part,
    call_of,
    cast_sizes,
    find_parts,
    load_part,
    outline_part,
    padding,
    passes_of,
    seq_lengths,
    stages_of,
    usual_size,
)
from tightfit.adapters.known.pipelines import PIPELINES
from tightfit.adapters.known.sizes import grid_of, vae_traits
from tightfit.adapters.parts import full_config
from tightfit.errors import InputError, UsageError
from tightfit.plan.size import Size
from tightfit.weigh import dry_peak, walk, weights

HALF = torch.bfloat16
MINIS = [name for name in PIPELINES if name.endswith("-mini")]
TRUE = [name for name in PIPELINES if name not in MINIS]
GIB = 2**30
PEAKS = [
    ("sd1.5/unet", "denoise", Size(512, 512), HALF, 0.127),
    ("flux.1-dev/transformer", "denoise", Size(1024, 1024), HALF, 0.46),
    ("flux.1-dev/transformer", "denoise", Size(2048, 2048), HALF, 1.67),
    ("qwen-image/transformer", "denoise", Size(1328, 1328), HALF, 0.62),
    ("flux.2-dev/transformer", "denoise", Size(2048, 2048), HALF, 4.12),
    ("wan2.1-t2v-1.3b/transformer", "denoise", Size(832, 480, 81), HALF, 1.51),
    ("wan2.1-t2v-14b/transformer", "denoise", Size(1280, 720, 81), HALF, 8.03),
    ("hunyuan-video/transformer", "denoise", Size(960, 544, 61), HALF, 3.42),
    ("sdxl/vae", "decode", Size(1024, 1024), torch.float16, 1.50),
    ("flux.1-dev/vae", "decode", Size(1024, 1024), torch.float32, 3.00),
    ("flux.1-dev/vae", "decode", Size(2048, 2048), HALF, 6.00),
    ("flux.2-dev/vae", "decode", Size(1024, 1024), HALF, 1.50),
    ("qwen-image/vae", "decode", Size(1024, 1024), HALF, 3.38),
    ("qwen-image/vae", "encode", Size(1024, 1024), HALF, 1.883),
    ("ltx-video/vae", "decode", Size(768, 512, 161), HALF, 5.90),
]
"""GiB, from dry runs made elsewhere on the same versions, without the inputs."""

DENOISERS = {name: find_parts(f"random:{name}")[-2] for name in PIPELINES}
VAES = {name: find_parts(f"random:{name}")[-1] for name in PIPELINES}


def part_of(name: str) -> Part:
    """The one part of this name."""
    (part,) = find_parts(f"random:{name}")
    return part


@cache
def outline(part: Part) -> nn.Module:
    """Its outline in bfloat16, built once for all tests."""
    return outline_part(part, dtype=HALF)


def shallow(part: Part) -> Part:
    """With two layers of each kind, where their number is an argument: widths stay true."""
    many = ("num_layers", "num_single_layers", "n_layers", "num_hidden_layers")
    stacked = part.class_name in ("Mistral3ForConditionalGeneration", "Qwen3ForCausalLM")
    fewer = {} if stacked else dict.fromkeys(set(many) & set(full(part)), 2)
    return replace(part, config={**part.config, **fewer})


def full(part: Part) -> dict[str, Any]:
    """Its configuration; that of an encoder is complete."""
    return full_config(part) if part.library == "diffusers" else dict(part.config)


@cache
def left_on_meta(part: Part, stage: str, size: Size) -> bool:
    """Call it; whether what it keeps is on the meta device still. Twins are called once."""
    module = outline(part)
    call_of(part, module, stage, size, dtype=HALF)()
    return all(held.tensor.device.type == "meta" for held in walk(module))


@pytest.mark.slow
@pytest.mark.parametrize("name", TRUE)
def test_every_part_has_a_call_at_its_usual_size(name: str) -> None:
    """At true widths and few layers; films of 1 + 2 latent frames, enough to fill caches."""
    for part in find_parts(f"random:{name}"):
        size = usual_size(part)
        if part.stage == "decode":
            traits = vae_traits(part)
            size = replace(size, frames=1 + 2 * traits.temporal if traits.axes == 3 else 1)
        twin = replace(shallow(part), spec="", pipeline="", name="")
        for stage in stages_of(part):
            assert left_on_meta(twin, stage, size)


@pytest.mark.parametrize(
    ("name", "stage", "size", "dtype", "gib"), PEAKS, ids=lambda value: str(value)
)
def test_peaks_are_those_of_other_dry_runs(
    name: str, stage: str, size: Size, dtype: torch.dtype, gib: float
) -> None:
    """Within 2 %: ours count the inputs, and theirs are rounded. Depth adds nothing to a peak."""
    part = shallow(part_of(name))
    module = outline(part) if dtype is HALF else outline_part(part, dtype=dtype)
    peak = dry_peak(call_of(part, module, stage, size, dtype=dtype))
    assert peak / GIB == pytest.approx(gib, rel=0.02, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("name", MINIS)
def test_a_mini_runs_for_real(name: str) -> None:
    """Finite, the same twice and as the meta device says; nothing kept, a few million weights."""
    for part in find_parts(f"random:{name}"):
        module = load_part(part, dtype=torch.float32)
        dry = outline_part(part, dtype=torch.float32)
        assert sum(held.tensor.numel() for held in walk(module)) < 10_000_000
        before = {held.path for held in weights(module)}
        size = Size(64, 64, frames=usual_size(part).frames)
        for stage in stages_of(part):
            call, told = (
                call_of(part, it, stage, size, dtype=torch.float32) for it in (module, dry)
            )
            state = torch.get_rng_state()
            one, two, outlined = first(call()), first(call()), first(told())
            assert torch.equal(state, torch.get_rng_state())
            assert torch.isfinite(one).all()
            assert torch.equal(one, two)
            assert (one.shape, one.dtype) == (outlined.shape, outlined.dtype)
        assert {held.path for held in weights(module)} == before
        assert not any("feat_map" in held.path for held in walk(module))


def first(result: Any) -> torch.Tensor:
    """The tensor that matters of what a network gives back."""
    while not isinstance(result, torch.Tensor):
        result = result[0]
    return result


class _Seen(Exception):
    """Ends a pipeline at its denoiser."""


NARROW: dict[str, dict[str, Any]] = {
    "flux.2-klein-4b": {
        "num_layers": 1,
        "num_single_layers": 1,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "axes_dims_rope": (4, 4, 4, 4),
        "joint_attention_dim": 24,
        "guidance_embeds": False,
    },
    "wan2.1-i2v-14b": {
        "in_channels": 36,
        "image_dim": 16,
        "added_kv_proj_dim": 32,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "num_layers": 1,
        "text_dim": 16,
    },
    "wan2.2-ti2v-5b": {
        "in_channels": 48,
        "out_channels": 48,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "num_layers": 1,
        "text_dim": 16,
    },
    "hunyuan-video": {
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "num_layers": 1,
        "num_single_layers": 1,
        "num_refiner_layers": 1,
        "rope_axes_dim": (4, 6, 6),
        "text_embed_dim": 16,
        "pooled_projection_dim": 8,
    },
    "ltx-video": {
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "cross_attention_dim": 32,
        "num_layers": 1,
        "caption_channels": 16,
    },
    "z-image": {
        "dim": 32,
        "n_layers": 1,
        "n_refiner_layers": 1,
        "n_heads": 2,
        "n_kv_heads": 2,
        "cap_feat_dim": 16,
        "axes_dims": [4, 6, 6],
    },
    "sd3.5-large": {
        "num_layers": 1,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "joint_attention_dim": 16,
        "caption_projection_dim": 32,
        "pooled_projection_dim": 8,
        "pos_embed_max_size": 24,
    },
    "sd1.5": {
        "block_out_channels": (32, 32),
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "layers_per_block": 1,
        "cross_attention_dim": 16,
    },
}


def prompts(width: int, tokens: int, *, many: bool = False, pooled: int = 0) -> dict[str, Any]:
    """Encoded prompts as pipelines take them, the negative ones too."""
    made: dict[str, Any] = {}
    for prefix in ("", "negative_"):
        embeds = torch.zeros(1, tokens, width, dtype=HALF)
        made[f"{prefix}prompt_embeds"] = list(embeds) if many else embeds
        if pooled:
            made[f"{prefix}pooled_prompt_embeds"] = torch.zeros(1, pooled, dtype=HALF)
    return made


def only(given: dict[str, Any]) -> dict[str, Any]:
    """Without negative prompts, for a pipeline that is told the strength of its guidance."""
    return {name: value for name, value in given.items() if not name.startswith("negative")}


def masked(given: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """With the masks that some pipelines ask for, of prompts as long as can be."""
    masks = {
        name.replace("embeds", "attention_mask"): torch.ones(value.shape[:2], dtype=dtype)
        for name, value in given.items()
        if "pooled" not in name
    }
    return {**given, **masks}


FRAMES = {"num_frames": 9}
SHAPED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "flux.1-dev-mini": ("FluxPipeline", {}, only(prompts(64, 512, pooled=64))),
    "flux.2-dev-mini": ("Flux2Pipeline", {}, only(prompts(192, 512))),
    "flux.2-klein-4b": ("Flux2KleinPipeline", {"is_distilled": True}, only(prompts(24, 512))),
    "wan2.1-t2v-1.3b-mini": ("WanPipeline", {}, {**prompts(64, 512), **FRAMES}),
    "wan2.2-ti2v-5b": (
        "WanPipeline",
        {"expand_timesteps": True, "vae": "wan2.2-vae"},
        {**prompts(16, 512), **FRAMES},
    ),
    "wan2.1-i2v-14b": (
        "WanImageToVideoPipeline",
        {"vae": "wan2.1-vae"},
        {
            **prompts(16, 512),
            **FRAMES,
            "image": torch.zeros(1, 3, 64, 96),
        },
    ),
    "sdxl-mini": ("StableDiffusionXLPipeline", {}, prompts(128, 77, pooled=64)),
    "qwen-image-mini": ("QwenImagePipeline", {}, prompts(64, 512)),
    "hunyuan-video": (
        "HunyuanVideoPipeline",
        {},
        {**masked(only(prompts(16, 256, pooled=8)), HALF), **FRAMES},
    ),
    "ltx-video": ("LTXPipeline", {}, {**masked(prompts(16, 128), torch.long), **FRAMES}),
    "z-image": ("ZImagePipeline", {}, prompts(16, 512, many=True)),
    "sd3.5-large": ("StableDiffusion3Pipeline", {}, prompts(16, 77 + 256, pooled=8)),
    "sd1.5": ("StableDiffusionPipeline", {}, prompts(16, 77)),
}
"""A real pipeline without encoders: its class, what it is made with, what it is called with."""


@pytest.mark.parametrize("name", SHAPED)
def test_a_call_is_the_one_its_pipeline_makes(name: str) -> None:
    """Argument for argument, shapes and dtypes are those a real pipeline gives its denoiser."""
    part = DENOISERS[name]
    if name in NARROW:
        part = replace(part, config=NARROW[name])
    module: Any = load_part(part, dtype=HALF)
    size = Size(64, 96, frames=9) if grid_of(part).temporal else Size(64, 96)
    ours = seen(module, call_of(part, module, "denoise", size, dtype=HALF))
    class_name, made, given = SHAPED[name]
    pipe = assembled(class_name, part.name, module, **made)
    pipe.encode_image = lambda *_: torch.zeros(1, 257, 16, dtype=HALF)
    theirs = seen(
        module,
        lambda: pipe(
            height=size.height, width=size.width, num_inference_steps=2, output_type="pt", **given
        ),
    )
    assert ours == theirs


def assembled(class_name: str, slot: str, module: nn.Module, **made: Any) -> Any:
    """The pipeline of diffusers around `module`, with nothing else in it that has weights."""
    cls = getattr(diffusers, class_name)
    if "vae" in made:
        part = part_of(made["vae"])
        narrow = {**part.config, "base_dim": 8, "decoder_base_dim": 8}
        made["vae"] = load_part(replace(part, config=narrow), dtype=HALF)
    needed = inspect.signature(cls.__init__).parameters
    empty = {
        name: None
        for name, parameter in needed.items()
        if name != "self" and parameter.default is inspect.Parameter.empty
    }
    flow = "Stable" not in class_name or class_name == "StableDiffusion3Pipeline"
    scheduler: Any = (
        diffusers.FlowMatchEulerDiscreteScheduler()
        if flow
        else diffusers.DDIMScheduler(steps_offset=1, clip_sample=False)
    )
    pipe = cls(**{**empty, "scheduler": scheduler, slot: module, **made})
    pipe.set_progress_bar_config(disable=True)
    return pipe


def seen(module: nn.Module, run: Callable[[], object]) -> dict[str, Any]:
    """What the first call on `module` is given: by name, shapes and dtypes for tensors."""
    given: dict[str, Any] = {}
    names = inspect.signature(type(module).forward)

    def note(_: nn.Module, args: Any, kwargs: Any) -> None:
        given.update(names.bind(module, *args, **kwargs).arguments)
        raise _Seen

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with pytest.raises(_Seen):
            run()
    finally:
        handle.remove()
    given.pop("self")
    return {name: shape(value) for name, value in given.items() if is_told(value)}


def is_told(value: Any) -> bool:
    """Not one of the ways to leave an argument out."""
    return isinstance(value, torch.Tensor) or value not in (None, False, {})


def shape(value: Any) -> Any:
    """A tensor's shape and dtype; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, (list, tuple)):
        return [shape(item) for item in value]
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return value


@pytest.mark.parametrize("name", TRUE)
@given(
    width=st.integers(1, 2048),
    height=st.integers(1, 2048),
    frames=st.integers(1, 130),
)
def test_a_size_is_cast_to_one_that_both_networks_take(
    name: str, width: int, height: int, frames: int
) -> None:
    """Never smaller, by less than a step, cast twice is cast once; latents fit one another."""
    denoiser, vae = DENOISERS[name], VAES[name]
    grid, traits = grid_of(denoiser), vae_traits(vae)
    asked = Size(width, height, frames if grid.temporal else 1)
    cast = cast_sizes(denoiser, asked)
    assert cast_sizes(denoiser, cast) == cast
    assert padding(cast, cast) == ()
    assert bool(padding(asked, cast)) == (asked != cast)
    step = grid.spatial * grid.patch
    assert 0 <= cast.width - asked.width < step
    assert 0 <= cast.height - asked.height < step
    assert 0 <= cast.frames - asked.frames < (grid.temporal or 1)
    assert cast_sizes(vae, cast) == cast
    latent = traits.latent_sizes((cast.frames, cast.height, cast.width)[-traits.axes :])
    assert latent == grid.latent(cast)[-traits.axes :]
    assert seq_lengths(vae, cast).image == seq_lengths(denoiser, cast).image * grid.patch**2


def test_what_was_padded_is_told() -> None:
    """In the words of a report."""
    part = DENOISERS["wan2.1-t2v-14b"]
    cast = cast_sizes(part, Size(1000, 700, frames=14))
    assert cast == Size(1008, 704, frames=17)
    assert padding(Size(1000, 700, frames=14), cast) == (
        "padded 1000x700 to 1008x704",
        "padded 14 frames to 17",
    )
    encoder = find_parts("random:wan2.1-t2v-14b")[0]
    assert cast_sizes(encoder, Size(1001, 701, frames=14)) == Size(1001, 701, frames=14)


def test_what_a_denoiser_cannot_make_is_refused() -> None:
    """A film from a network of pictures, and sides beyond a position table."""
    with pytest.raises(UsageError, match="makes pictures, not 5 frames"):
        cast_sizes(DENOISERS["flux.1-dev"], Size(1024, 1024, frames=5))
    with pytest.raises(UsageError, match="up to 3072 pixels, not 4096x1024"):
        cast_sizes(DENOISERS["sd3.5-large"], Size(4096, 1024))


def test_sequences_are_as_long_as_the_pipelines_make_them() -> None:
    """Text as it is padded by default; one token for each patch."""
    assert seq_lengths(DENOISERS["flux.1-dev"], Size(1024, 1024)).image == 4096
    assert seq_lengths(DENOISERS["wan2.1-t2v-14b"], Size(832, 480, frames=81)).image == 32760
    texts = {
        name: [
            seq_lengths(part, usual_size(part)).text
            for part in find_parts(f"random:{name}")
            if part.stage in ("encode text", "denoise")
        ]
        for name in ("flux.1-dev", "sd3.5-large", "ltx-video", "hunyuan-video", "qwen-image")
    }
    assert texts == {
        "flux.1-dev": [77, 512, 512],
        "sd3.5-large": [77, 77, 256, 333],
        "ltx-video": [128, 128],
        "hunyuan-video": [351, 77, 256],
        "qwen-image": [546, 512],
    }


def test_guidance_is_what_the_pipeline_does() -> None:
    """Two passes for Wan and Qwen-Image; one for the others, of a doubled batch for some."""
    passes = {name: passes_of(part) for name, part in DENOISERS.items()}
    assert {name for name, count in passes.items() if count == 2} == {
        name for name in PIPELINES if name.startswith(("wan", "qwen"))
    }
    for name, batch in (("sdxl-mini", 6), ("flux.1-dev-mini", 3), ("qwen-image-mini", 3)):
        part = DENOISERS[name]
        size = Size(64, 64, batch=3)
        call = call_of(part, outline(part), "denoise", size, dtype=HALF)
        assert first(call()).shape[0] == batch


def test_a_picture_vae_takes_each_frame_as_an_item() -> None:
    """Five frames, three at once, are fifteen pictures."""
    part = VAES["flux.1-dev"]
    call = call_of(part, outline(part), "decode", Size(64, 64, frames=5, batch=3), dtype=HALF)
    assert first(call()).shape == (15, 3, 64, 64)


def test_a_call_that_is_not_known_is_refused() -> None:
    """A stage the part does not have, and classes of which no call is known."""
    part = DENOISERS["sdxl-mini"]
    with pytest.raises(UsageError, match="does not decode: denoise"):
        call_of(part, outline(part), "decode", Size(64, 64), dtype=HALF)
    for strange in (
        replace(part, class_name="Kandinsky3UNet"),
        replace(part, stage="encode text", class_name="BertModel"),
        replace(part, stage="decode", class_name="AutoencoderTiny"),
    ):
        with pytest.raises(InputError, match=r"not predicted|not supported"):
            call_of(strange, outline(part), strange.stage, Size(64, 64), dtype=HALF)
