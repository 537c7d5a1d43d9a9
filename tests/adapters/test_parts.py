"""From a SPEC to the parts of a pipeline, and to their shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch import nn
from transformers import T5EncoderModel

from tightfit.adapters import Part, find_parts, load_part, outline_part, stages_of
from tightfit.adapters.known.pipelines import PIPELINES
from tightfit.errors import InputError, UsageError
from tightfit.weigh import Kind, identity, walk, weight_bytes, weights

TRUE_PARAMETERS = {
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
    "flux.1-dev/vae": 83_819_683,
    "flux.2-dev/vae": 84_046_115,
    "wan2.1-t2v-14b/vae": 126_892_531,
    "wan2.2-ti2v-5b/vae": 704_688_668,
    "qwen-image/vae": 126_892_531,
    "sdxl/vae": 83_653_863,
    "sd1.5/vae": 83_653_863,
    "hunyuan-video/vae": 246_478_803,
    "ltx-video/vae": 419_193_649,
    "flux.1-dev/text_encoder": 123_060_480,
    "sdxl/text_encoder_2": 694_659_840,
    "flux.1-dev/text_encoder_2": 4_762_310_656,
    "wan2.1-t2v-1.3b/text_encoder": 5_680_910_336,
    "qwen-image/text_encoder": 8_292_166_656,
    "flux.2-dev/text_encoder": 24_011_361_280,
    "hunyuan-video/text_encoder": 7_505_186_816,
    "z-image/text_encoder": 4_022_468_096,
    "flux.2-klein-9b/text_encoder": 8_190_735_360,
}


def part_of(name: str) -> Part:
    """The one part of this name."""
    (part,) = find_parts(f"random:{name}")
    return part


def save(part: Part, folder: Path) -> nn.Module:
    """Its weights in a folder, as its library saves them."""
    module: Any = load_part(part, dtype=torch.float32)
    module.save_pretrained(folder)
    assert isinstance(module, nn.Module)
    return module


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A pipeline's folder as diffusers writes it, its components in no order."""
    folder = tmp_path / "my-flux"
    index: dict[str, Any] = {"_class_name": "FluxPipeline", "_diffusers_version": "0.42.1"}
    for part in reversed(find_parts("random:flux.1-dev-mini")):
        save(part, folder / part.name)
        index[part.name] = [part.library, part.class_name]
    index["scheduler"] = ["diffusers", "FlowMatchEulerDiscreteScheduler"]
    index["tokenizer"] = ["transformers", "CLIPTokenizer"]
    index["image_encoder"] = [None, None]
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), TRUE_PARAMETERS.items())
def test_an_outline_has_its_true_size(name: str, count: int) -> None:
    """Parameter counts are those of the published models, with ties counted once."""
    module = outline_part(part_of(name), dtype=torch.bfloat16)
    sizes = {
        identity(held.tensor): held.tensor.numel()
        for held in weights(module)
        if held.kind is Kind.PARAMETER
    }
    assert sum(sizes.values()) == count
    assert not module.training
    for held in walk(module):
        assert held.tensor.device.type == "meta"
        assert not held.tensor.requires_grad


def test_tables_on_the_host_go_to_meta_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain attribute that a network makes on the host by name, also within a container."""
    made = WanTransformer3DModel.__init__

    def with_tables(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.tables = {"both": [torch.ones(3, device="cpu"), (torch.ones(2, device="cpu"),)]}

    monkeypatch.setattr(WanTransformer3DModel, "__init__", with_tables)
    module = outline_part(part_of("wan2.1-t2v-1.3b-mini/transformer"), dtype=torch.float32)
    found = [held for held in walk(module) if held.name == "tables"]
    assert [tuple(held.tensor.shape) for held in found] == [(3,), (2,)]
    assert {held.tensor.device.type for held in found} == {"meta"}


@pytest.mark.parametrize(
    ("name", "cls", "dtype"),
    [
        ("wan2.1-t2v-1.3b-mini/transformer", WanTransformer3DModel, torch.bfloat16),
        ("wan2.1-t2v-1.3b-mini/transformer", WanTransformer3DModel, torch.float32),
        ("flux.1-dev-mini/text_encoder_2", T5EncoderModel, torch.float16),
        ("flux.1-dev-mini/text_encoder_2", T5EncoderModel, torch.bfloat16),
    ],
)
def test_an_outline_keeps_in_float32_what_the_loader_keeps(
    name: str, cls: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Tensor for tensor, an outline has the dtypes of the same model loaded from a folder."""
    save(part_of(name), tmp_path / "part")
    loaded = load_part(find_parts(str(tmp_path / "part"))[0], dtype=dtype)
    assert isinstance(loaded, cls)
    outline = outline_part(part_of(name), dtype=dtype)
    stored = {held.path: held.tensor for held in weights(loaded)}
    for held in weights(outline):
        assert held.tensor.dtype == stored[held.path].dtype, held.path
        assert held.tensor.shape == stored[held.path].shape
    assert weight_bytes(outline) == weight_bytes(loaded)


@pytest.mark.parametrize("name", PIPELINES)
def test_parts_come_in_the_order_of_their_stages(name: str) -> None:
    """Text before pictures before denoising before decoding; each names itself alone."""
    order = ("encode text", "encode image", "denoise", "decode")
    parts = find_parts(f"random:{name}")
    ranks = [order.index(part.stage) for part in parts]
    assert ranks == sorted(ranks)
    assert [part.stage for part in parts[-2:]] == ["denoise", "decode"]
    for part in parts:
        assert find_parts(part.spec) == (part,)
        assert part.random
        assert part.path is None
    assert stages_of(parts[-1]) == ("decode", "encode")
    assert stages_of(parts[0]) == ("encode text",)


def test_a_vae_or_an_encoder_alone_is_a_part() -> None:
    """By its own name it is the network of the pipeline that has it; ``mini:VAE`` has weights."""
    for name, of in (("flux-vae", "flux.1-dev/vae"), ("t5-xxl", "flux.1-dev/text_encoder_2")):
        alone, whole = part_of(name), part_of(of)
        assert (alone.class_name, alone.config) == (whole.class_name, whole.config)
        assert stages_of(alone) == stages_of(whole)
    (mini,) = find_parts("mini:wan2.1-vae")
    assert mini.stage == "decode"
    assert mini.path is not None
    assert not mini.random
    assert weight_bytes(load_part(mini, dtype=torch.float32)) > 0


@pytest.mark.parametrize(
    ("spec", "near"),
    [
        ("random:flux1-dev", "flux.1-dev"),
        ("random:wan2.1-14b", "wan2.1-t2v-14b"),
        ("random:flux-vea", "flux-vae"),
        ("random:nothing-like-it-at-all", "flux.1-dev"),
        ("random:sdxl/transformer", "sdxl/unet"),
        ("random:flux.1-dev/text_encoder_3", "flux.1-dev/text_encoder_2"),
        ("mini:flux", "wan2.1-vae"),
    ],
)
def test_an_unknown_name_lists_those_near_it(spec: str, near: str) -> None:
    """One sentence that names what was asked for and what is there."""
    with pytest.raises(UsageError) as caught:
        find_parts(spec)
    assert spec in str(caught.value)
    assert near in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipeline_folder_gives_its_parts(pipeline: Path) -> None:
    """Those with weights, in the order of stages, as ``random:`` gives them."""
    parts = find_parts(str(pipeline))
    known = find_parts("random:flux.1-dev-mini")
    assert {part.name for part in parts} == {part.name for part in known}
    assert [part.stage for part in parts] == [part.stage for part in known]
    for part in parts:
        assert part.path == pipeline / part.name
        assert part.pipeline == "my-flux"
        assert part.pipeline_class == "FluxPipeline"
        assert not part.random
        alone = find_parts(str(part.path))
        assert alone == (replace(part, spec=str(part.path)),)


def test_weights_of_a_folder_are_those_that_were_saved(pipeline: Path) -> None:
    """Loaded through the library's own loader, and the outline has the same shapes."""
    folder = pipeline / "transformer"
    kept = load_part(part_of("flux.1-dev-mini/transformer"), dtype=torch.float32)
    (part,) = find_parts(str(folder))
    loaded = {held.path: held.tensor for held in weights(load_part(part, dtype=torch.float32))}
    for held in weights(kept):
        assert torch.equal(held.tensor, loaded[held.path])
    for held in weights(outline_part(part, dtype=torch.float32)):
        assert held.tensor.shape == loaded[held.path].shape


def test_random_weights_are_seeded_and_the_callers_state_stays() -> None:
    """Two loads are the same weights."""
    state = torch.get_rng_state()
    part = part_of("sdxl-mini/text_encoder_2")
    one, two = (load_part(part, dtype=torch.float32) for _ in range(2))
    for left, right in zip(weights(one), weights(two), strict=True):
        assert torch.equal(left.tensor, right.tensor)
    assert torch.equal(state, torch.get_rng_state())


def test_a_folder_that_is_not_whole_is_refused(pipeline: Path, tmp_path: Path) -> None:
    """Each in one sentence that names the file at fault."""
    (pipeline / "transformer" / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match=r"transformer/config\.json is not readable JSON"):
        find_parts(str(pipeline))
    (pipeline / "transformer" / "config.json").unlink()
    with pytest.raises(InputError, match=r"transformer/config\.json is missing"):
        find_parts(str(pipeline))
    index = pipeline / "model_index.json"
    index.write_text('{"_class_name": "FluxPipeline"}', encoding="utf-8")
    with pytest.raises(InputError, match="names no component with weights"):
        find_parts(str(pipeline))
    index.write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match="is not a configuration"):
        find_parts(str(pipeline))
    with pytest.raises(InputError, match="without a model_index"):
        find_parts(str(tmp_path))
    with pytest.raises(InputError, match="is a file"):
        find_parts(str(index))
    with pytest.raises(InputError, match="neither a folder"):
        find_parts("someone/something")


def test_a_class_that_is_not_installed_is_refused(tmp_path: Path) -> None:
    """The folder is recognised; the outline says what is missing, or what does not fit."""
    (tmp_path / "config.json").write_text('{"_class_name": "NoSuchModel"}', encoding="utf-8")
    (part,) = find_parts(str(tmp_path))
    with pytest.raises(InputError, match="`NoSuchModel` is no class of the diffusers"):
        outline_part(part, dtype=torch.float32)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="names no class"):
        find_parts(str(tmp_path))
    wrong = replace(part_of("sdxl/unet"), config={"down_block_types": ("Unknown",)})
    with pytest.raises(InputError, match="cannot be loaded"):
        outline_part(wrong, dtype=torch.float32)
