"""Known architectures, by the names of diffusers, transformers and the original checkpoints."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.weigh import original_names as original
from tests.weigh.header_makers import LIST, Gguf, Shapes, header_of, mixed_header
from tightfit.adapters.known.architectures import ARCHITECTURES, Architecture
from tightfit.adapters.known.denoisers import DENOISERS
from tightfit.adapters.known.encoders import ENCODERS
from tightfit.weigh.files.header_blocks import blocks_of_header
from tightfit.weigh.files.headers import Header, read_header
from tightfit.weigh.files.recognise import FAMILIES, recognise
from tightfit.weigh.files.ties import without_copies

PARAMETERS = {
    "flux.1-dev/transformer": 11_901_408_320,
    "flux.1-schnell/transformer": 11_891_178_560,
    "flux.2-dev/transformer": 32_223_281_152,
    "flux.2-klein-4b/transformer": 3_875_544_576,
    "flux.2-klein-9b/transformer": 9_078_581_248,
    "wan2.1-t2v-1.3b/transformer": 1_418_996_800,
    "wan2.1-t2v-14b/transformer": 14_288_491_584,
    "wan2.1-i2v-14b/transformer": 16_394_878_784,
    "wan2.2-ti2v-5b/transformer": 4_999_787_712,
    "qwen-image/transformer": 20_430_401_088,
    "sdxl/unet": 2_567_463_684,
    "sd1.5/unet": 859_520_964,
    "hunyuan-video/transformer": 12_821_012_544,
    "ltx-video/transformer": 1_923_385_472,
    "ltx-video-13b/transformer": 13_042_569_344,
    "z-image/transformer": 6_154_908_736,
    "sd3.5-large/transformer": 8_056_627_520,
    "flux-vae": 83_819_683,
    "flux.2-vae": 84_046_115,
    "sdxl-vae": 83_653_863,
    "wan2.1-vae": 126_892_531,
    "wan2.2-vae": 704_688_668,
    "qwen-image-vae": 126_892_531,
    "hunyuan-video-vae": 246_478_803,
    "ltx-video-vae": 419_193_649,
    "clip-l": 123_060_480,
    "openclip-bigg": 694_659_840,
    "t5-xxl": 4_762_310_656,
    "umt5-xxl": 5_680_910_336,
    "qwen2.5-vl-7b": 8_292_166_656,
    "mistral-small-3.2-24b": 24_011_361_280,
    "llama-3-8b": 7_505_186_816,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
}
"""As counted on the meta device, and as published."""


def true_sizes() -> Iterator[tuple[str, str]]:
    """Each architecture, by the table that it is in and its name there, and what it is called."""
    for name, built in DENOISERS.items():
        part = "unet" if built.class_name == "UNet2DConditionModel" else "transformer"
        yield name, f"{name}/{part}"
    for name in (*ARCHITECTURES, *ENCODERS):
        yield name, name


KNOWN = {name: called for name, called in true_sizes() if called in PARAMETERS}
BUILT: dict[str, Architecture] = {**DENOISERS, **ARCHITECTURES, **ENCODERS}


@cache
def built(name: str) -> nn.Module:
    """The network at its true size, without values."""
    import diffusers
    import transformers

    known = BUILT[name]
    cls = getattr(diffusers if known.library == "diffusers" else transformers, known.class_name)
    with torch.device("meta"):
        if known.library == "diffusers":
            return cls(**known.arguments)
        module = cls(cls.config_class(**known.arguments))
    module.tie_weights()
    return module


@cache
def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    """Of all tensors that a file of it may have."""
    return {key: tuple(value.shape) for key, value in built(name).state_dict().items()}


def stored(name: str) -> Header:
    """The header of its file, ties once."""
    config = {"tie_word_embeddings": name.startswith("qwen3-4b")}
    return without_copies(header_of(shapes_of(name), class_name=BUILT[name].class_name), config)


def test_the_tables_agree_on_what_is_known() -> None:
    """What can be built under a name is recognised under it, and the other way round."""
    members = [known for family in FAMILIES for known in family.members.values()]
    assert {known.name for known in members} | {"qwen-image-vae"} == set(PARAMETERS)
    assert set(KNOWN.values()) == set(PARAMETERS)
    assert all(PARAMETERS[known.name] == known.parameters for known in members)


@pytest.mark.parametrize("name", KNOWN)
def test_an_architecture_is_recognised_at_its_true_size(name: str) -> None:
    """By the keys that its class has; its values are as many as its parameters."""
    header = stored(name)
    known = recognise(header)
    assert known is not None
    assert known.name == KNOWN[name]
    assert known.class_name == BUILT[name].class_name
    parameters = {key for key, _ in built(name).named_parameters()}
    counted = sum(t.elements for t in header.tensors if t.name in parameters)
    assert counted == PARAMETERS[known.name] == known.parameters
    weights = blocks_of_header(header, "bfloat16")
    assert weights.name == known.name
    assert weights.stored_bytes == header.weight_bytes


@pytest.mark.parametrize("name", [name for name in BUILT if name.endswith("-mini")])
def test_a_narrow_one_of_the_same_class_is_not_taken_for_it(name: str) -> None:
    """What is known of the true size does not hold for it; its blocks are found all the same."""
    header = stored(name)
    assert recognise(header) is None
    weights = blocks_of_header(header, "bfloat16")
    assert weights.name == BUILT[name].class_name
    assert weights.stored_bytes == header.weight_bytes


def packed(shapes: Shapes, *, as_nf4: bool) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Every matrix packed: nf4 as bitsandbytes does it, or fp8 with a scale beside it."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        if len(shape) != 2 or not name.endswith(".weight"):
            tensors[name] = ("F32", tuple(shape))
        elif as_nf4:
            values = shape[0] * shape[1]
            tensors[name] = ("U8", (values // 2, 1))
            tensors[f"{name}.absmax"] = ("F32", (values // 64,))
            tensors[f"{name}.quant_map"] = ("F32", (16,))
            tensors[f"{name}.quant_state.bitsandbytes__nf4"] = ("U8", (88,))
        else:
            tensors[name] = ("F8_E4M3", tuple(shape))
            tensors[f"{name.removesuffix('.weight')}.scale_weight"] = ("F32", (1,))
    return tensors


@pytest.mark.parametrize("as_nf4", [True, False], ids=["nf4", "fp8"])
@pytest.mark.parametrize(
    "name",
    [
        *("flux.1-schnell", "flux.2-klein-4b", "wan2.1-i2v-14b", "sd1.5", "ltx-video", "z-image"),
        *("flux.2-vae", "qwen-image-vae", "clip-l", "t5-xxl", "umt5-xxl", "llama-3-8b"),
    ],
)
def test_a_packed_one_is_the_same_architecture(name: str, *, as_nf4: bool) -> None:
    """Shapes may be packed; the values inside are as many, and the blocks are the same."""
    header = without_copies(mixed_header(packed(shapes_of(name), as_nf4=as_nf4)), {})
    known = recognise(header)
    expected = "wan2.1-vae" if name == "qwen-image-vae" else KNOWN[name]  # no class is given
    assert known is not None
    assert known.name == expected
    plain = without_copies(header_of(shapes_of(name)), {})
    assert header.elements == plain.elements
    theirs, ours = (blocks_of_header(each, "bfloat16").blocks for each in (plain, header))
    assert [block.name for block in ours] == [block.name for block in theirs]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("flux.1-dev/transformer", original.flux()),
        ("wan2.1-t2v-1.3b/transformer", original.wan(1536, 8960, 30)),
        ("t5-xxl", original.llama_cpp_t5()),
        ("sd1.5/unet", original.unet((320, 640, 1280, 1280), (1, 1, 1, 0), 768, xl=False)),
    ],
)
def test_a_gguf_file_is_the_same_architecture(
    tmp_path: Path, name: str, shapes: original.Shapes
) -> None:
    """Matrices in Q4_K, kernels flattened where their rows are no whole blocks."""
    made = Gguf()
    for key, shape in shapes.items():
        rows, rest = divmod(prod(shape), 256)
        if len(shape) < 2 or rest:
            made.tensor(key, shape, "F32")
        elif shape[-1] % 256 == 0:
            made.tensor(key, shape, "Q4_K")
        else:
            axes = struct.pack(f"<IQ{len(shape)}i", 5, len(shape), *shape)
            made.entry(f"comfy.gguf.orig_shape.{key}", LIST, axes)
            made.tensor(key, (rows, 256), "Q4_K")
    header = read_header(made.write(tmp_path / "model.gguf"))
    known = recognise(header)
    assert known is not None
    assert known.name == name
    assert header.elements == known.parameters
    assert {tensor.name: tensor.shape for tensor in header.tensors} == shapes
    weights = blocks_of_header(header, "bfloat16")
    assert weights.stored_bytes == header.weight_bytes
    assert weights.converted_bytes >= 2 * max(prod(shape) for shape in shapes.values())


def converted(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """diffusers' own way from the original names to its own."""
    from diffusers.loaders import single_file_utils as theirs

    return getattr(theirs, f"convert_{name}")  # type: ignore[no-any-return]


def unet_config(*, xl: bool) -> dict[str, Any]:
    """What the converter of U-Nets asks for."""
    blocks = 3 if xl else 4
    return {
        "layers_per_block": 2,
        "class_embed_type": None,
        "addition_embed_type": "text_time" if xl else None,
        "down_block_types": (None,) * blocks,
        "up_block_types": (None,) * blocks,
        "block_out_channels": (None,) * blocks,
    }


def prefixed(shapes: original.Shapes) -> original.Shapes:
    """As in a bundle, which is what the converter of U-Nets takes."""
    return {f"model.diffusion_model.{name}": shape for name, shape in shapes.items()}


VAE = {"down_block_types": (None,) * 4, "up_block_types": (None,) * 4}
SDXL = original.unet((320, 640, 1280), (0, 2, 10), 2048, xl=True)
SD15 = original.unet((320, 640, 1280, 1280), (1, 1, 1, 0), 768, xl=False)
ORIGINALS: dict[str, tuple[str, original.Shapes, str, dict[str, Any] | None]] = {
    "FLUX.1-dev": (
        "flux.1-dev",
        original.flux(),
        "flux_transformer_checkpoint_to_diffusers",
        None,
    ),
    "FLUX.1-schnell": (
        "flux.1-schnell",
        original.flux(guidance=False),
        "flux_transformer_checkpoint_to_diffusers",
        None,
    ),
    "FLUX.2-dev": (
        "flux.2-dev",
        original.flux2(),
        "flux2_transformer_checkpoint_to_diffusers",
        None,
    ),
    "Wan 2.1 T2V 1.3B": (
        "wan2.1-t2v-1.3b",
        original.wan(1536, 8960, 30),
        "wan_transformer_to_diffusers",
        None,
    ),
    "Wan 2.1 T2V 14B": (
        "wan2.1-t2v-14b",
        original.wan(5120, 13824, 40),
        "wan_transformer_to_diffusers",
        None,
    ),
    "Wan 2.1 I2V 14B": (
        "wan2.1-i2v-14b",
        original.wan(5120, 13824, 40, channels=36, image=True),
        "wan_transformer_to_diffusers",
        None,
    ),
    "Wan 2.2 TI2V 5B": (
        "wan2.2-ti2v-5b",
        original.wan(3072, 14336, 30, channels=48),
        "wan_transformer_to_diffusers",
        None,
    ),
    "HunyuanVideo": (
        "hunyuan-video",
        original.hunyuan_video(),
        "hunyuan_video_transformer_to_diffusers",
        None,
    ),
    "LTX-Video": (
        "ltx-video",
        original.ltx_video(),
        "ltx_transformer_checkpoint_to_diffusers",
        None,
    ),
    "Z-Image": (
        "z-image",
        original.z_image(),
        "z_image_transformer_checkpoint_to_diffusers",
        None,
    ),
    "SD 3.5 large": (
        "sd3.5-large",
        original.sd35_large(),
        "sd3_transformer_checkpoint_to_diffusers",
        None,
    ),
    "SDXL": ("sdxl", prefixed(SDXL), "ldm_unet_checkpoint", unet_config(xl=True)),
    "SD 1.5": ("sd1.5", prefixed(SD15), "ldm_unet_checkpoint", unet_config(xl=False)),
    "SDXL's VAE": ("sdxl-vae", original.autoencoder(4, quantised=True), "ldm_vae_checkpoint", VAE),
    "FLUX's VAE": (
        "flux-vae",
        original.autoencoder(16, quantised=False),
        "ldm_vae_checkpoint",
        VAE,
    ),
    "Wan 2.1's VAE": ("wan2.1-vae", original.wan_autoencoder(), "wan_vae_to_diffusers", None),
}


@pytest.mark.parametrize("title", ORIGINALS)
def test_an_original_checkpoint_is_the_same_architecture(title: str) -> None:
    """Its names are real: diffusers' converter turns them into exactly the names of the class."""
    name, shapes, converter, config = ORIGINALS[title]
    tensors = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    arguments = () if config is None else (config,)
    theirs = converted(converter)(tensors, *arguments)  # type: ignore[call-arg]
    assert {key: tuple(value.shape) for key, value in theirs.items()} == shapes_of(name)
    known = recognise(header_of(shapes))
    assert known is not None
    assert known.name == KNOWN[name]


def test_ltxs_vae_is_recognised_by_its_original_names() -> None:
    """The converter drops one of its tables, which the class keeps."""
    shapes = original.ltx_autoencoder(shapes_of("ltx-video-vae"))
    assert recognise(header_of(shapes)) == recognise(stored("ltx-video-vae"))
    tensors = {f"vae.{key}": torch.empty(shape, device="meta") for key, shape in shapes.items()}
    theirs = converted("ltx_vae_checkpoint_to_diffusers")(tensors)
    expected = dict(shapes_of("ltx-video-vae"))
    del expected["latents_mean"]
    assert {k: tuple(v.shape) for k, v in theirs.items() if k in expected} == {
        key: shape for key, shape in expected.items() if key in theirs
    }
    assert not set(theirs) - set(expected) - {"latents_mean"}


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("clip-l", original.clip(768, 12)),
        ("openclip-bigg", original.clip(1280, 32) | {"text_projection.weight": (1280, 1280)}),
        ("openclip-bigg", original.open_clip()),
        ("t5-xxl", original.t5(32128, every_bias=False)),
        ("t5-xxl", original.llama_cpp_t5()),
        ("umt5-xxl", original.t5(256384, every_bias=True)),
        ("umt5-xxl", original.wan_umt5()),
    ],
)
def test_text_encoders_go_by_several_names(name: str, shapes: original.Shapes) -> None:
    """transformers 4 and 5, OpenCLIP, llama.cpp, Wan's own; the values are as many."""
    header = header_of(shapes)
    known = recognise(header)
    assert known is not None
    assert known.name == name
    scale = 1 if "logit_scale" in shapes else 0
    assert header.elements - scale == known.parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", ["qwen2.5-vl-7b", "mistral-small-3.2-24b", "llama-3-8b"])
@pytest.mark.parametrize("before", ["model.", "language_model.model.", "model.language_model.", ""])
def test_a_language_model_is_known_by_its_body(name: str, before: str) -> None:
    """With or without a head and a vision tower, whatever stands before its names."""
    shapes = shapes_of(name)
    start = next(key for key in shapes if key.endswith("embed_tokens.weight"))
    body = start.removesuffix("embed_tokens.weight")
    alone = {
        before + key.removeprefix(body): shape
        for key, shape in shapes.items()
        if key.startswith(body)
    }
    known = recognise(header_of(alone))
    assert known is not None
    assert known.name == name


def test_hunyuan_video_is_not_taken_for_flux() -> None:
    """Both have `double_blocks` of the same width; the first has a patch to embed, and refiners."""
    shapes = original.hunyuan_video()
    renamed = {
        "model.model." + key.replace("_attn_qkv.", "_attn.qkv."): shape
        for key, shape in shapes.items()
    }
    for each in (shapes, renamed):
        known = recognise(header_of(each))
        assert known is not None
        assert known.name == "hunyuan-video/transformer"


def test_what_differs_from_a_known_architecture_is_not_it() -> None:
    """A block less, other channels, a third more weights, another family, nothing at all."""
    flux = original.flux()
    shorter = {key: shape for key, shape in flux.items() if not key.startswith("single_blocks.37.")}
    fill = flux | {"img_in.weight": (3072, 384)}
    control = flux | {f"control.{n}.weight": (3072, 3072) for n in range(30)}
    unfamiliar = {"blocks.0.mixer.weight": (64, 64)}
    for shapes in (shorter, fill, control, unfamiliar, {}):
        assert recognise(header_of(shapes)) is None
    assert recognise(header_of(flux | {"some.new.scale": (3072,)})) is not None


def test_only_a_configuration_tells_the_vaes_of_qwen_and_wan_apart() -> None:
    """Their tensors are the same, one by one."""
    shapes = shapes_of("qwen-image-vae")
    assert shapes == shapes_of("wan2.1-vae")
    names = [
        getattr(recognise(header_of(shapes, class_name=name)), "name", None)
        for name in (None, "AutoencoderKLWan", "AutoencoderKLQwenImage")
    ]
    assert names == ["wan2.1-vae", "wan2.1-vae", "qwen-image-vae"]


def run_order(module: nn.Module, call: Callable[[], object]) -> list[str]:
    """The modules that have weights, in the order in which `call` first reaches them."""
    seen: dict[str, None] = {}
    for name, child in module.named_modules():
        if child._parameters:
            child.register_forward_pre_hook(lambda *_, name=name: seen.setdefault(name))
    with torch.no_grad():
        call()
    return list(seen)


def picture(*shape: int) -> torch.Tensor:
    """An input."""
    return torch.zeros(shape, device="meta")


def flux_call(module: Any) -> object:
    """One forward pass of FLUX.1."""
    ids = torch.zeros(4, 3)
    return module(
        hidden_states=picture(1, 4, 64),
        encoder_hidden_states=picture(1, 4, 64),
        pooled_projections=picture(1, 64),
        timestep=picture(1),
        guidance=picture(1),
        img_ids=ids.to("meta"),
        txt_ids=ids.to("meta"),
    )


def flux2_call(module: Any) -> object:
    """One forward pass of FLUX.2."""
    return module(
        hidden_states=picture(1, 4, 128),
        encoder_hidden_states=picture(1, 4, 192),
        timestep=picture(1),
        guidance=picture(1),
        img_ids=picture(4, 4),
        txt_ids=picture(4, 4),
    )


def sdxl_call(module: Any) -> object:
    """One forward pass of SDXL's U-Net."""
    added = {"text_embeds": picture(1, 256 - 6 * 32), "time_ids": picture(1, 6)}
    return module(picture(1, 4, 16, 16), 1, picture(1, 4, 128), added_cond_kwargs=added)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("flux.1-dev-mini", flux_call),
        ("flux.2-dev-mini", flux2_call),
        ("sdxl-mini", sdxl_call),
        ("flux-vae-mini", lambda module: module(picture(1, 3, 32, 32))),
        ("sdxl-vae-mini", lambda module: module(picture(1, 3, 32, 32))),
    ],
)
def test_blocks_are_listed_in_the_order_in_which_they_run(
    name: str, call: Callable[[Any], object]
) -> None:
    """Names alone tell it: a real pass reaches the blocks in the order of the header's."""
    module = built(name)
    reached = run_order(module, lambda: call(module))
    blocks = blocks_of_header(stored(name), "bfloat16").blocks
    first = [
        min(reached.index(leaf.name) for leaf in block.leaves if leaf.name in reached)
        for block in blocks
    ]
    assert len(first) == len(blocks)
    assert first == sorted(first)
