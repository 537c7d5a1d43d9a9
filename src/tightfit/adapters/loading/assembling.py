"""A pipeline of diffusers put together: networks that are there, and everything else it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tightfit.adapters.libraries import class_named
from tightfit.adapters.loading.prompts import STAND_IN, stand_in
from tightfit.adapters.loading.schedulers import usual_scheduler
from tightfit.adapters.parts import DENOISE, ENCODE_TEXT, Part, read_json

if TYPE_CHECKING:
    from tightfit.adapters.loading.whole import PipelineSource

INDEX = "model_index.json"


def assembled(source: PipelineSource, networks: Mapping[str, Any]) -> Any:
    """A pipeline of these networks, by their names, with everything else that `source` has."""
    cls = class_named("diffusers", source.class_name)
    if source.folder is not None:
        content = read_json(source.spec, source.folder / INDEX)
        if any(isinstance(each, list) and each[-1] == STAND_IN for each in content.values()):
            return cls(**_settings_of(content), **_others_of(source, content, networks), **networks)
        name = next(part.name for part in source.parts if part.stage == DENOISE)
        common = networks[name].dtype  # of checkers and the like, which are no parts
        return cls.from_pretrained(
            source.folder, local_files_only=True, torch_dtype=common, **networks
        )
    assert source.known is not None
    name = source.known.removesuffix("-mini")
    made = {**networks, **_tokenizers(source, networks), **_SETTINGS.get(name, {})}
    if "image_encoder" in networks:
        made["image_processor"] = class_named("transformers", "CLIPImageProcessor")()
    return cls(scheduler=usual_scheduler(source.known), **made)


_SETTINGS: dict[str, dict[str, Any]] = {
    "flux.2-klein-4b": {"is_distilled": True},
    "flux.2-klein-9b": {"is_distilled": True},
    "wan2.2-ti2v-5b": {"expand_timesteps": True},
    "sdxl": {"add_watermarker": False},
    "sd1.5": {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False},
}
"""What these pipelines are published with, beside their components."""


def _tokenizers(source: PipelineSource, networks: Mapping[str, Any]) -> dict[str, Any]:
    """One for each text encoder; SDXL's second pads with another id than its first."""
    made = {}
    for part in source.parts:
        if part.stage == ENCODE_TEXT:
            size = networks[part.name].config.get_text_config().vocab_size
            second = source.class_name.startswith("StableDiffusionXL") and part.name[-1] == "2"
            made[_tokenizer_of(part)] = stand_in(
                part.class_name, size, pads_with=0 if second else None
            )
    return made


def _tokenizer_of(part: Part) -> str:
    return part.name.replace("text_encoder", "tokenizer")


def _settings_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a pipeline was saved with, beside its components."""
    return {
        name: each
        for name, each in content.items()
        if not name.startswith("_") and not isinstance(each, list)
    }


def _others_of(
    source: PipelineSource, content: Mapping[str, Any], networks: Mapping[str, Any]
) -> dict[str, Any]:
    """All but networks, of a pipeline that was saved with stand-ins: no file holds those."""
    assert source.folder is not None
    stand_ins = _tokenizers(source, networks)
    made: dict[str, Any] = {}
    for name, each in content.items():
        if not isinstance(each, list) or name in networks:
            continue
        library, class_name = each
        if class_name is None:
            made[name] = None
        elif class_name == STAND_IN:
            made[name] = stand_ins[name]
        else:
            kind = class_named(library, class_name)
            made[name] = kind.from_pretrained(source.folder / name, local_files_only=True)
    return made
