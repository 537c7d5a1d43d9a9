"""How pipelines are told what is asked for, by the signatures of their calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tightfit.adapters.live.legal import Legal
from tightfit.adapters.live.loras import parse_lora
from tightfit.adapters.live.orders import Order, Speech
from tightfit.adapters.live.variants import class_for
from tightfit.adapters.parts import find_parts
from tightfit.errors import UsageError


class Plain:
    """One guidance."""

    def __call__(
        self, prompt: Any, negative_prompt: Any = None, guidance_scale: float = 5.0,
        num_inference_steps: int = 50, num_images_per_prompt: int = 1, width: Any = None,
        generator: Any = None, output_type: str = "pil",
    ) -> None: ...  # fmt: skip


class Both:
    """A guidance of the network's own, and a true one."""

    def __call__(
        self, prompt: Any, negative_prompt: Any = None, true_cfg_scale: float = 1.0,
        guidance_scale: float = 3.5, generator: Any = None,
    ) -> None: ...  # fmt: skip


def told(pipeline: type, **asked: Any) -> dict[str, Any]:
    """What the call is given."""
    generators = [torch.Generator() for _ in range(asked.pop("num", 1))]
    return Speech.of(pipeline).arguments(Order("a cat", **asked), generators)


def test_only_what_is_asked_for_is_told() -> None:
    """The rest is left to the pipeline's own defaults."""
    given = told(Plain)
    assert set(given) == {"prompt", "generator", "output_type"}
    given = told(Plain, guidance=2.0, steps=3, width=64, num=2)
    assert given["guidance_scale"] == 2.0
    assert given["num_images_per_prompt"] == len(given["generator"]) == 2


def test_a_negative_prompt_makes_guidance_the_true_one() -> None:
    """Without one it is the network's own."""
    assert told(Both, guidance=4.0)["guidance_scale"] == 4.0
    given = told(Both, guidance=4.0, negative="dogs")
    assert given["true_cfg_scale"] == 4.0
    assert "guidance_scale" not in given
    with pytest.raises(UsageError, match="guidance above 1"):
        Speech.of(Both).check(Order("a cat", negative="dogs"))
    Speech.of(Both).check(Order("a cat", negative="dogs", guidance=4.0))


def test_settings_have_the_defaults_of_the_pipeline() -> None:
    """So that a picture says how it was made."""
    settings = Speech.of(Plain).settings(Order("a cat"))
    assert settings == {"prompt": "a cat", "steps": "50", "guidance": "5"}


@pytest.mark.parametrize(
    ("spec", "side", "frames"),
    [
        ("random:flux.1-dev", 16, None),
        ("random:flux.2-dev-mini", 16, None),
        ("random:sdxl", 8, None),
        ("random:qwen-image", 16, None),
        ("random:wan2.1-t2v-14b", 16, 4),
        ("random:wan2.2-ti2v-5b", 32, 4),
        ("random:ltx-video", 32, 8),
        ("random:hunyuan-video", 16, 4),
    ],
)
def test_sizes_that_known_pipelines_take(spec: str, side: int, frames: int | None) -> None:
    """From the VAE's ratio and the denoiser's patches, without weights."""
    legal = Legal.of(find_parts(spec))
    assert legal is not None
    assert (legal.side, legal.frames) == (side, frames)
    legal.check(width=side * 20, height=side * 30, frames=None if frames is None else 1 + frames)
    with pytest.raises(UsageError, match=f"use {side * 20} or {side * 21}"):
        legal.check(width=side * 20 + 1, height=side, frames=None)


def test_a_variant_is_found_by_what_is_given() -> None:
    """Those that take a picture themselves are their own."""
    assert class_for("FluxPipeline").__name__ == "FluxPipeline"
    assert class_for("FluxPipeline", image=True).__name__ == "FluxImg2ImgPipeline"
    assert class_for("FluxPipeline", image=True, mask=True).__name__ == "FluxInpaintPipeline"
    assert class_for("Flux2Pipeline", image=True).__name__ == "Flux2Pipeline"
    with pytest.raises(UsageError, match="no variant that does"):
        class_for("WanPipeline", image=True)


def test_a_lora_is_a_file_and_a_strength(tmp_path: Path) -> None:
    """One without; a colon in a name that exists; nonsense."""
    odd = tmp_path / "a:b"
    odd.write_bytes(b"")
    assert parse_lora("x.safetensors") == (Path("x.safetensors"), 1.0)
    assert parse_lora("x.safetensors:-0.5") == (Path("x.safetensors"), -0.5)
    assert parse_lora(str(odd)) == (odd, 1.0)
    with pytest.raises(UsageError, match="`strong` is no strength"):
        parse_lora("x.safetensors:strong")
    with pytest.raises(UsageError, match="FILE:STRENGTH"):
        parse_lora("")
