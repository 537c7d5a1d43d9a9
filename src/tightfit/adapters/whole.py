"""From a SPEC to a whole pipeline of diffusers: what it is, and then itself, on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tightfit.adapters.libraries import LOADING, class_named, said_by_us
from tightfit.adapters.parts import ENCODE_TEXT, Part, find_parts, load_part
from tightfit.adapters.pipelines import PIPELINES
from tightfit.adapters.prompts import stand_in
from tightfit.adapters.schedulers import exchanged, scheduler_class, usual_scheduler
from tightfit.errors import UsageError
from tightfit.plan.size import Size


@dataclass(frozen=True)
class PipelineSource:
    """A pipeline, before any weight is read.

    Attributes:
        spec: as the user wrote it.
        class_name: of diffusers.
        parts: its networks in the order of their stages, replaced ones included.
        random: whether any part has random weights.
        size: what it is usually asked for.
        known: its name in `PIPELINES`, where it is made from no file.
    """

    spec: str
    class_name: str
    parts: tuple[Part, ...]
    random: bool
    size: Size
    known: str | None = None


def find_pipeline(
    spec: str, *, parts: Mapping[str, Path] | None = None, base: str | None = None
) -> PipelineSource:
    """Find out what `spec` is without reading weights."""
    if parts or base is not None:
        raise UsageError("Parts from files are not supported yet.")
    kind, _, name = spec.partition(":")
    if kind == "random":
        if "/" in name:
            raise UsageError(f"`{spec}` is one part of a pipeline: generate takes a whole one.")
        found = find_parts(spec)
        if name not in PIPELINES:
            raise UsageError(f"`{spec}` is one network: generate takes a whole pipeline.")
        pipeline = PIPELINES[name]
        return PipelineSource(spec, pipeline.class_name, found, True, pipeline.size, name)
    raise UsageError(f"`{spec}` is not supported yet.")


def load_pipeline(
    source: PipelineSource,
    *,
    dtype: torch.dtype | None = None,
    weights: str | None = None,
    scheduler: str | None = None,
) -> Any:
    """The pipeline with its weights on the host, ready to be called or fitted."""
    del weights
    if scheduler is not None:
        scheduler_class(scheduler)
    with said_by_us(f"`{source.spec}`"), LOADING:
        pipe = _random(source, dtype)
        if scheduler is not None:
            pipe.scheduler = exchanged(pipe.scheduler, scheduler)
    return pipe


_OWN: dict[str, dict[str, Any]] = {
    "Flux2KleinPipeline": {"is_distilled": True},
    "StableDiffusionXLPipeline": {"add_watermarker": False},
    "StableDiffusionPipeline": {
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    },
}


def _random(source: PipelineSource, dtype: torch.dtype | None) -> Any:
    assert source.known is not None
    made: dict[str, Any] = dict(_OWN.get(source.class_name, {}))
    if source.known == "wan2.2-ti2v-5b":
        made["expand_timesteps"] = True
    for part in source.parts:
        made[part.name] = load_part(part, dtype=dtype or _usual_dtype(source.known, part))
        if part.stage == ENCODE_TEXT:
            made[part.name.replace("text_encoder", "tokenizer")] = _tokenizer(
                source, part, made[part.name]
            )
    if "image_encoder" in made:
        made["image_processor"] = class_named("transformers", "CLIPImageProcessor")()
    made["scheduler"] = usual_scheduler(source.known)
    return class_named("diffusers", source.class_name)(**made)


def _usual_dtype(name: str, part: Part) -> torch.dtype:
    """What is published: halves, but for Wan's VAE; `-mini` networks are for hosts."""
    if name.endswith("-mini") or part.class_name == "AutoencoderKLWan":
        return torch.float32
    return torch.bfloat16


def _tokenizer(source: PipelineSource, part: Part, encoder: Any) -> Any:
    text = encoder.config.get_text_config()
    second = source.class_name.startswith("StableDiffusionXL") and part.name == "text_encoder_2"
    return stand_in(part.class_name, text.vocab_size, pads_with=0 if second else None)
