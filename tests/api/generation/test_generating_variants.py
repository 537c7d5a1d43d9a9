"""`generate` from pictures, within masks, with LoRAs, by other schedulers, of loaded pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tightfit
from tests.pipelines.making import ROOMY, make, mask, picture, pipeline
from tightfit.card import open_card
from tightfit.errors import InputError, UsageError
from tightfit.media.latents import load_latent
from tightfit.units import KIB

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
)
TIGHT = 2100 * KIB


def test_a_pipeline_that_was_loaded_is_given_back_as_it_was() -> None:
    """It is fitted no more, goes by its own scheduler, which made no step, and shows its bar."""
    pipe = pipeline("sdxl")
    scheduler, bar = pipe.scheduler, dict(pipe._progress_bar_config)
    make("sdxl", pipe, scheduler="unipc")
    assert pipe.scheduler is scheduler
    assert scheduler.num_inference_steps is None
    assert pipe._progress_bar_config == bar
    with pytest.raises(UsageError, match="not fitted"):
        tightfit.unfit(pipe)
    assert not {"encode", "decode"} & set(vars(pipe.vae))


def test_a_fitted_pipeline_is_used_as_it_is() -> None:
    """On its own card and budget, and it stays fitted; other memory options are refused."""
    card = open_card(ROOMY)
    pipe = tightfit.fit(pipeline("sdxl"), card=card, vram=TIGHT)
    try:
        done = make("sdxl", pipe, card=None)
        assert done.report.budget_bytes == TIGHT
        with pytest.raises(UsageError, match="vram: the pipeline is fitted already"):
            make("sdxl", pipe, card=None, vram="1MiB")
        assert tightfit.fitted(pipe).networks["unet"].calls == 2
    finally:
        tightfit.unfit(pipe)
    assert torch.equal(done.value[0].frames.pixels, make("sdxl").value[0].frames.pixels)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flux", "sdxl"])
def test_a_picture_to_start_from_matters_as_much_as_its_strength_leaves(
    kind: str, tmp_path: Path
) -> None:
    """By the pipeline's variant, at the picture's size: half the strength is half the steps."""
    start = picture(tmp_path / "in.png", 64, 48)
    given = {"image": start, "width": None, "height": None, "steps": 4}
    done = make(kind, strength=0.5, **given)
    assert done.value[0].settings["size"] == "64x48"
    assert done.report.stages[2]["stage"] == "encode image"
    denoise = next(each for each in done.report.stages if each["stage"] == "denoise")
    assert denoise["steps"] == 2
    other = make(kind, strength=1.0, **given).value[0]
    assert not torch.equal(done.value[0].frames.pixels, other.frames.pixels)


def test_a_mask_says_where_a_picture_is_made_anew(tmp_path: Path) -> None:
    """Latents outside of it are those of the picture."""
    start = picture(tmp_path / "in.png")
    given = {"image": start, "steps": 4, "strength": 1.0, "width": None, "height": None}
    one, two = (tmp_path / f"{n}.safetensors" for n in (1, 2))
    make("flux", mask=mask(tmp_path / "m.png"), latents=one, **given)
    make("flux", mask=mask(tmp_path / "m.png"), latents=two, seed=9, **given)
    first, second = load_latent(one).latent, load_latent(two).latent
    left, right = slice(None, 14), slice(18, None)
    assert not torch.equal(first[..., right], second[..., right])
    difference = (first[..., left] - second[..., left]).abs().mean()
    assert difference < 0.7 * (first[..., right] - second[..., right]).abs().mean()


def lora_file(path: Path, *, width: int = 64) -> Path:
    """Of two layers of the tiny transformer, where the width is its own."""
    draw = torch.Generator().manual_seed(5)
    names = ("single_transformer_blocks.0.attn.to_q", "transformer_blocks.1.attn.to_k")
    weights = {
        f"transformer.{name}.{half}.weight": torch.randn(shape, generator=draw)
        for name in names
        for half, shape in (("lora_A", (4, width)), ("lora_B", (width, 4)))
    }
    save_file(weights, path)
    return path


def test_a_lora_changes_the_picture_by_its_strength_and_goes_again(tmp_path: Path) -> None:
    """None at strength 0; the pipeline has no adapter afterwards."""
    pytest.importorskip("peft")
    path = lora_file(tmp_path / "style.safetensors")
    pipe = pipeline("flux")
    without = make("flux", pipe).value[0].frames.pixels
    worn = make("flux", pipe, loras=[(path, 0.8)]).value[0]
    assert not torch.equal(worn.frames.pixels, without)
    assert worn.settings["LoRA"] == f"{path}:0.8"
    asleep = make("flux", pipe, loras=[(path, 0.0)]).value[0].frames.pixels
    torch.testing.assert_close(asleep, without, rtol=0, atol=1e-6)
    assert not any(pipe.get_list_adapters().values())
    assert torch.equal(make("flux", pipe).value[0].frames.pixels, without)


def test_a_lora_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    """Wrong widths, and none of its layers; the pipeline is as it was."""
    pytest.importorskip("peft")
    pipe = pipeline("flux")
    wide = lora_file(tmp_path / "wide.safetensors", width=96)
    with pytest.raises(InputError, match=r"wide.safetensors is for another model.*takes"):
        make("flux", pipe, loras=[(wide, 1.0)])
    strange = tmp_path / "strange.safetensors"
    draw = {f"unet.mid.lora_{half}.weight": torch.zeros(4, 4) for half in "AB"}
    save_file(draw, strange)
    with pytest.raises(InputError, match=r"strange.safetensors is for another model"):
        make("flux", pipe, loras=[(strange, 1.0)])
    weights = tmp_path / "weights.safetensors"
    save_file({"layer.weight": torch.zeros(4, 4)}, weights)
    with pytest.raises(InputError, match=r"holds no LoRA, but `layer.weight`"):
        make("flux", pipe, loras=[(weights, 1.0)])
    assert not any(pipe.get_list_adapters().values())
