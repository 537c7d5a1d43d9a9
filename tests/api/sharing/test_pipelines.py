"""Whole pipelines on one card: the same latents at every budget, and everything given back."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.pipelines import tiny
from tightfit.card import Card, open_card
from tightfit.errors import MemoryShortage, UsageError
from tightfit.units import KIB, MIB

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
)
KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "flux": (
        tiny.flux,
        {"height": 64, "width": 64, "guidance_scale": 3.5, "max_sequence_length": 16},
    ),
    "sdxl": (tiny.sdxl, {"height": 64, "width": 64}),
    "wan": (
        tiny.wan,
        {"height": 32, "width": 32, "num_frames": 5, "max_sequence_length": 16},
    ),
}
TIGHT = {"flux": 1400 * KIB, "sdxl": 2100 * KIB, "wan": 400 * KIB}
"""Less than weights and activations of all networks take together."""
MAIN = {"flux": "transformer", "sdxl": "unet", "wan": "transformer"}


def call(pipe: Any, kind: str, *, output: str = "latent", **more: Any) -> torch.Tensor:
    """Two steps from one seed, on the host."""
    given = {**KINDS[kind][1], **more}
    made = pipe(
        prompt="a cat on a mat",
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(1),
        output_type=output,
        **given,
    )
    value: torch.Tensor = made.frames if kind == "wan" else made.images
    return value.to("cpu", copy=True)


def fitted_call(kind: str, card: Card, *, vram: int | None, **more: Any) -> torch.Tensor:
    """By a pipeline that is fitted for it and given back."""
    pipe = tightfit.fit(KINDS[kind][0](), card=card, vram=vram)
    try:
        return call(pipe, kind, **more)
    finally:
        tightfit.unfit(pipe)


@cache
def roomy(kind: str) -> torch.Tensor:
    """The latents of a card where all fits."""
    return fitted_call(kind, open_card("virtual:1GiB"), vram=None)


@pytest.mark.parametrize("kind", KINDS)
def test_latents_are_the_same_bits_at_every_budget(kind: str) -> None:
    """What fits whole, and what streams; allocated stays within the budget."""
    card = open_card("virtual:1GiB")
    card.reset_peaks()
    tight = fitted_call(kind, card, vram=TIGHT[kind])
    assert torch.equal(tight, roomy(kind))
    assert (card.read().peak_allocated or 0) <= TIGHT[kind]
    gc.collect()
    assert card.read().allocated == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("allocator", ["native", "expandable", "async"])
def test_latents_are_the_same_bits_by_every_allocator_and_wherever_weights_are(
    kind: str, allocator: str
) -> None:
    """All resident, and all streamed."""
    for mode in ("high", "none"):
        card = open_card(f"virtual:1GiB,allocator={allocator}")
        pipe = tightfit.fit(KINDS[kind][0](), card=card, mode=mode)
        try:
            assert torch.equal(call(pipe, kind), roomy(kind))
            main = tightfit.fitted(pipe).networks[MAIN[kind]]
            streamed = main.plan.stages[0].streamed
            assert bool(streamed) == (mode == "none")
        finally:
            tightfit.unfit(pipe)
        del pipe, main  # its scheduler keeps times on the card
        gc.collect()
        assert card.read().allocated == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_tight_budget_makes_networks_rest_or_stream(kind: str) -> None:
    """Else the test above would show nothing."""
    pipe = tightfit.fit(KINDS[kind][0](), card=open_card("virtual:1GiB"), vram=TIGHT[kind])
    try:
        call(pipe, kind, output="pt")
        kept = tightfit.fitted(pipe)
        main = kept.networks[MAIN[kind]]
        assert kept.shelf.notes
        assert main.taken == 0 or main.plan.stages[0].streamed
    finally:
        tightfit.unfit(pipe)


def test_a_picture_in_strips_is_the_whole_one_but_for_rounding() -> None:
    """The VAE's rung is told by the fitted pipeline."""
    whole = fitted_call("wan", open_card("virtual:1GiB"), vram=None, output="pt")
    pipe = tightfit.fit(tiny.wan(), card=open_card("virtual:1GiB"), vram=TIGHT["wan"])
    try:
        strips = call(pipe, "wan", output="pt")
        rungs = [each.rung for each in tightfit.fitted(pipe).codings if each.outcome == "ok"]
    finally:
        tightfit.unfit(pipe)
    assert rungs[-1].startswith("strips")
    assert (strips - whole).abs().max() <= 1e-4


def test_the_latent_is_told_before_each_decode() -> None:
    """On the host, with the values that the VAE is given, so that they can be kept."""
    seen: list[torch.Tensor] = []
    pipe = tightfit.fit(tiny.flux(), card=open_card("virtual:1GiB"), vram=TIGHT["flux"])
    try:
        call(pipe, "flux")
        tightfit.fitted(pipe).before_decode = seen.append
        picture = call(pipe, "flux", output="pt")
    finally:
        tightfit.unfit(pipe)
    assert [latent.device.type for latent in seen] == ["cpu"]
    with torch.no_grad():
        decoded = pipe.vae.decode(seen[0]).sample
    shown = pipe.image_processor.postprocess(decoded, output_type="pt")
    assert (shown - picture).abs().max() <= 1e-5


@pytest.mark.parametrize("frames", [5, 8])
def test_a_clip_of_any_length_is_encoded_as_ever(frames: int) -> None:
    """Wan's VAE leaves out frames that make no whole latent; Cosmos encodes sixteen."""
    pipe = tiny.wan()
    clip = torch.randn(1, 3, frames, 32, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        wanted = pipe.vae.encode(clip).latent_dist.mode()
        tightfit.fit(pipe, card=open_card("virtual:1GiB"), vram=TIGHT["wan"])
        made = pipe.vae.encode(clip.to(tightfit.fitted(pipe).card.device)).latent_dist.mode()
        assert made.device == tightfit.fitted(pipe).card.device
    tightfit.unfit(pipe)
    assert wanted.shape[2] == 2
    assert (made.cpu() - wanted).abs().max() <= 1e-5


def test_unfit_gives_a_pipeline_back_as_it_was() -> None:
    """Its networks lie on the host with the weights they had, and no name on them is ours."""
    pipe = tiny.flux()
    call(pipe, "flux")  # pipelines leave registries of hooks themselves
    before = {
        name: ({k: v.clone() for k, v in part.state_dict().items()}, set(vars(part)))
        for name, part in pipe.components.items()
        if isinstance(part, nn.Module)
    }
    tightfit.fit(pipe, card="virtual:1GiB", vram=TIGHT["flux"])
    call(pipe, "flux")
    tightfit.unfit(pipe)
    for name, (weights, attributes) in before.items():
        part = pipe.components[name]
        assert set(vars(part)) == attributes
        for key, value in part.state_dict().items():
            assert value.device.type == "cpu"
            assert torch.equal(value, weights[key])
    call(pipe, "flux")


def test_a_pipeline_is_fitted_once_and_unfitted_once() -> None:
    """A sentence says so."""
    pipe = tightfit.fit(tiny.wan(), card="virtual:1GiB")
    with pytest.raises(UsageError, match="fitted already"):
        tightfit.fit(pipe, card="virtual:1GiB")
    with pytest.raises(UsageError, match="unfit it first"):
        tightfit.fit(pipe.transformer, card="virtual:1GiB")
    tightfit.unfit(pipe)
    with pytest.raises(UsageError, match="not fitted"):
        tightfit.unfit(pipe)


def test_what_offloads_a_pipeline_already_is_refused_by_name() -> None:
    """Two cannot place the same weights; what was taken before the refusal is given back."""
    pipe = tiny.flux()
    pipe.transformer._hf_hook = object()
    with pytest.raises(UsageError, match="`transformer` is offloaded by accelerate"):
        tightfit.fit(pipe, card="virtual:1GiB")
    del pipe.transformer._hf_hook
    tightfit.unfit(tightfit.fit(pipe, card="virtual:1GiB"))


def test_a_vae_in_a_dtype_that_the_card_has_not_is_refused_before_any_call() -> None:
    """As networks are; what was taken before is given back."""
    card, pipe = open_card("virtual:1GiB, bf16=no"), tiny.wan()
    pipe.vae.to(torch.bfloat16)
    with pytest.raises(UsageError, match=r"`AutoencoderKLWan\.\S+` is in bfloat16"):
        tightfit.fit(pipe, card=card)
    pipe.vae.to(torch.float32)
    tightfit.unfit(tightfit.fit(pipe, card=card))


def test_idle_networks_leave_the_card_to_the_one_at_work() -> None:
    """After a call, what is on the card is within the budget, and the encoders rest."""
    pipe = tightfit.fit(tiny.flux(), card=open_card("virtual:1GiB"), vram=TIGHT["flux"])
    try:
        call(pipe, "flux")
        kept = tightfit.fitted(pipe)
        assert kept.networks["text_encoder"].taken == 0
        assert kept.networks["transformer"].taken <= TIGHT["flux"]
        lines = {line.partition(":")[0]: line for line in kept.explain().splitlines()}
        assert ", at rest, 1 calls" in lines["text_encoder"]
        assert " on the card now, 2 calls" in lines["transformer"]
    finally:
        tightfit.unfit(pipe)


def test_a_second_picture_needs_no_second_fit() -> None:
    """Networks that rested come back, with the same bits."""
    pipe = tightfit.fit(tiny.sdxl(), card=open_card("virtual:1GiB"), vram=TIGHT["sdxl"])
    try:
        assert torch.equal(call(pipe, "sdxl"), call(pipe, "sdxl"))
    finally:
        tightfit.unfit(pipe)


def test_a_callback_and_several_pictures_behave_as_before() -> None:
    """The caller's own arguments pass through."""
    seen = []

    def each(pipe: Any, step: int, time: Any, given: dict[str, Any]) -> dict[str, Any]:
        del pipe, time
        seen.append((step, given["latents"].device.type))
        return given

    pipe = tightfit.fit(tiny.flux(), card=open_card("virtual:1GiB"), vram=3 * MIB)
    try:
        made = call(pipe, "flux", callback_on_step_end=each, num_images_per_prompt=2)
    finally:
        tightfit.unfit(pipe)
    assert len(made) == 2
    assert seen == [(0, "vcard"), (1, "vcard")]


def lora(width: int = 64, rank: int = 4) -> dict[str, torch.Tensor]:
    """Of two layers of the transformer, large enough to be seen."""
    draw = torch.Generator().manual_seed(5)
    names = ("single_transformer_blocks.0.attn.to_q", "transformer_blocks.1.attn.to_k")
    return {
        f"transformer.{name}.{half}.weight": torch.randn(shape, generator=draw)
        for name in names
        for half, shape in (("lora_A", (rank, width)), ("lora_B", (width, rank)))
    }


@pytest.mark.parametrize("when", ["before", "between"])
def test_a_lora_of_a_pipeline_gives_the_same_bits_at_every_budget(when: str) -> None:
    """Loaded by the pipeline itself, before it is fitted or between two pictures."""
    pytest.importorskip("peft")
    made = {}
    for name, vram in (("roomy", None), ("tight", TIGHT["flux"] + 200 * KIB)):
        pipe = tiny.flux()
        if when == "before":
            pipe.load_lora_weights(lora())
        tightfit.fit(pipe, card=open_card("virtual:1GiB"), vram=vram)
        try:
            if when == "between":
                made[f"{name} without"] = call(pipe, "flux")
                pipe.load_lora_weights(lora())
            made[name] = call(pipe, "flux")
        finally:
            tightfit.unfit(pipe)
    assert torch.equal(made["roomy"], made["tight"])
    if when == "between":
        assert not torch.equal(made["tight"], made["tight without"])


def test_a_network_of_a_fitted_pipeline_is_saved_as_it_is(tmp_path: Any) -> None:
    """From the masters, while it streams."""
    pipe = tightfit.fit(tiny.flux(), card=open_card("virtual:1GiB"), vram=TIGHT["flux"])
    try:
        call(pipe, "flux")
        pipe.transformer.save_pretrained(tmp_path)
    finally:
        tightfit.unfit(pipe)
    again = type(pipe.transformer).from_pretrained(tmp_path)
    for key, value in again.state_dict().items():
        assert torch.equal(value, pipe.transformer.state_dict()[key])


def test_a_full_card_is_a_sentence_and_the_pipeline_goes_on_after_it() -> None:
    """Nothing of the failed call stays on the card, and a larger budget would do."""
    card = open_card("virtual:1GiB")
    pipe = tightfit.fit(tiny.flux(), card=card, vram=900 * KIB)
    try:
        call(pipe, "flux")
        said = "nothing"
    except MemoryShortage as error:
        said = str(error)
    assert said.startswith("Not enough memory to run FluxTransformer2DModel.")
    tightfit.unfit(pipe)
    gc.collect()
    assert (card.read().allocated or 0) <= 2 * KIB  # the scheduler's own times, and the pipeline's
    tightfit.fit(pipe, card=card, vram=TIGHT["flux"])
    call(pipe, "flux")
    tightfit.unfit(pipe)
