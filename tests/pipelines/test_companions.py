"""Fitted pipelines and what comes to them: modular blocks, shared parts, textual inversion."""

from __future__ import annotations

import string
from typing import Any

import pytest
import torch

import tightfit
from tests.pipelines import tiny
from tightfit.card import Card, open_card
from tightfit.errors import UsageError
from tightfit.units import KIB

TIGHT = 2300 * KIB


def modular() -> Any:
    """SDXL in blocks, of the parts of the pipeline in one class."""
    from diffusers import StableDiffusionXLAutoBlocks

    whole = tiny.sdxl()
    pipe = StableDiffusionXLAutoBlocks().init_pipeline()
    parts = {name: part for name, part in whole.components.items() if part is not None}
    pipe.update_components(**{n: part for n, part in parts.items() if n in pipe.component_names})
    pipe.set_progress_bar_config(disable=True)
    return pipe


def blocks(vram: int | None, card: Card) -> torch.Tensor:
    pipe = tightfit.fit(modular(), card=card, vram=vram)
    try:
        made: torch.Tensor = pipe(
            prompt="a fox",
            height=64,
            width=64,
            num_inference_steps=2,
            generator=torch.Generator().manual_seed(0),
            output="latents",
        )
        return made.to("cpu", copy=True)
    finally:
        tightfit.unfit(pipe)


@pytest.mark.filterwarnings("ignore")
def test_a_pipeline_of_blocks_gives_the_same_bits_at_every_budget() -> None:
    """`ModularPipeline` is none of `DiffusionPipeline`'s, and is fitted as they are."""
    card = open_card("virtual:1GiB")
    roomy = blocks(None, card)
    card.reset_peaks()
    assert torch.equal(blocks(TIGHT, card), roomy)
    assert (card.read().peak_allocated or 0) <= TIGHT


def test_a_part_of_another_fitted_pipeline_is_refused_by_name() -> None:
    """Two pipelines may share their parts; one of them is fitted."""
    from diffusers import StableDiffusionXLImg2ImgPipeline

    first = tightfit.fit(tiny.sdxl(), card="virtual:1GiB")
    try:
        parts = {name: part for name, part in first.components.items() if name != "image_encoder"}
        del parts["feature_extractor"]
        second = StableDiffusionXLImg2ImgPipeline(**parts, add_watermarker=False)
        with pytest.raises(UsageError, match="`vae` is fitted already"):
            tightfit.fit(second, card="virtual:1GiB")
    finally:
        tightfit.unfit(first)


@pytest.mark.filterwarnings("ignore")
def test_what_a_components_manager_offloads_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would move what is ours."""
    from diffusers import ComponentsManager
    from diffusers.utils.torch_utils import TorchDeviceBackend

    monkeypatch.setattr(TorchDeviceBackend, "mem_get_info", lambda self: (2**30, 2**30))
    pipe, manager = modular(), ComponentsManager()
    for name in ("text_encoder", "unet"):
        manager.add(name, pipe.components[name])
    manager.enable_auto_cpu_offload(device="cpu")
    with pytest.raises(UsageError, match="ComponentsManager"):
        tightfit.fit(pipe, card="virtual:1GiB")


def spelling() -> Any:
    """A tokenizer that words can be added to."""
    from transformers import CLIPTokenizer

    letters = string.ascii_lowercase
    words = [*letters, *(f"{letter}</w>" for letter in letters)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer({word: at for at, word in enumerate(words)}, [], model_max_length=16)


def pictured(pipe: Any, prompt: str) -> torch.Tensor:
    made = pipe(
        prompt,
        height=64,
        width=64,
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(0),
        output_type="latent",
    )
    value: torch.Tensor = made.images
    return value.to("cpu", copy=True)


def with_spelling() -> Any:
    pipe = tiny.sdxl()
    for name in ("", "_2"):
        setattr(pipe, f"tokenizer{name}", spelling())
        getattr(pipe, f"text_encoder{name}").config.eos_token_id = 53
    return pipe


def teach(pipe: Any) -> None:
    draw = torch.Generator().manual_seed(7)
    for name in ("", "_2"):
        pipe.load_textual_inversion(
            {"<fox>": 3 * torch.randn(32, generator=draw)},
            token="<fox>",
            text_encoder=getattr(pipe, f"text_encoder{name}"),
            tokenizer=getattr(pipe, f"tokenizer{name}"),
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("vram", [None, TIGHT])
def test_a_word_that_is_taught_between_two_pictures_is_known(vram: int | None) -> None:
    """Textual inversion writes into embeddings, which stay on the host until the next call."""
    before = with_spelling()
    teach(before)
    tightfit.fit(before, card="virtual:1GiB")
    wanted = pictured(before, "a <fox>")
    tightfit.unfit(before)
    pipe = tightfit.fit(with_spelling(), card=open_card("virtual:1GiB"), vram=vram)
    try:
        without = pictured(pipe, "a ")
        teach(pipe)
        made = pictured(pipe, "a <fox>")
    finally:
        tightfit.unfit(pipe)
    assert torch.equal(made, wanted)
    assert not torch.equal(made, without)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("vram", [None, TIGHT])
def test_a_word_that_was_taught_is_forgotten_between_two_pictures(vram: int | None) -> None:
    """The other way reads embeddings, which may be away, and makes new ones of them."""
    plain = tightfit.fit(with_spelling(), card=open_card("virtual:1GiB"))
    wanted = pictured(plain, "a fox")
    tightfit.unfit(plain)
    pipe = tightfit.fit(with_spelling(), card=open_card("virtual:1GiB"), vram=vram)
    attributes = set(vars(pipe))
    try:
        teach(pipe)
        taught = pictured(pipe, "a <fox>")
        pipe.unload_textual_inversion()
        pipe.unload_textual_inversion(text_encoder=pipe.text_encoder_2, tokenizer=pipe.tokenizer_2)
        sizes = [
            part.get_input_embeddings().num_embeddings
            for part in (pipe.text_encoder, pipe.text_encoder_2)
        ]
        made = pictured(pipe, "a fox")
    finally:
        tightfit.unfit(pipe)
    assert "unload_textual_inversion" in attributes
    assert "unload_textual_inversion" not in vars(pipe)
    assert sizes == [54, 54]
    assert torch.equal(made, wanted)
    assert not torch.equal(made, taught)
