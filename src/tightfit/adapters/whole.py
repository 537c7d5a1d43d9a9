"""From a SPEC to a whole pipeline of diffusers: what it is, and then itself, on the host."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tightfit.adapters.eight_bits import quantise, widen
from tightfit.adapters.hub import fetch_configurations, fetch_pipeline, is_hub_id
from tightfit.adapters.libraries import LOADING, class_named, said_by_us
from tightfit.adapters.part_file import header_of, main_dtype
from tightfit.adapters.parts import (
    DECODE,
    DENOISE,
    ENCODE_TEXT,
    Part,
    cast_part,
    find_parts,
    load_part,
    read_json,
)
from tightfit.adapters.pipelines import PIPELINES
from tightfit.adapters.prompts import stand_in
from tightfit.adapters.replaced import replaced
from tightfit.adapters.schedulers import exchanged, scheduler_class, usual_scheduler
from tightfit.adapters.sizes import usual_size
from tightfit.errors import InputError, UsageError
from tightfit.plan.size import Size
from tightfit.weigh.files.recognise import recognise

_INDEX = "model_index.json"
_STAND_IN = "StandInTokenizer"
_WEIGHTS = ("bf16", "fp8")


@dataclass(frozen=True)
class PipelineSource:
    """A pipeline, before any weight is read.

    Attributes:
        spec: as the user wrote it.
        class_name: of diffusers.
        parts: its networks in the order of their stages, replaced ones included.
        random: whether any part has random weights.
        size: what it is usually asked for.
        known: its name in `PIPELINES`, where what is not a network is made from no file.
        folder: where the rest of it is; of a hub's pipeline, without weights yet.
        hub: the name there, of one that is to be fetched.
    """

    spec: str
    class_name: str
    parts: tuple[Part, ...]
    random: bool
    size: Size
    known: str | None = None
    folder: Path | None = None
    hub: str | None = None


def find_pipeline(
    spec: str, *, parts: Mapping[str, Path] | None = None, base: str | None = None
) -> PipelineSource:
    """Find out what `spec` is, without reading weights; of a hub's, configurations are fetched.

    Args:
        spec: ``random:NAME``, the folder of a pipeline, a hub id; or the file or folder of a
            denoiser, where `base` says where the rest comes from.
        parts: files or folders for parts by their names; ``transformer`` also names a UNet.
        base: a SPEC of a whole pipeline.

    Raises:
        UsageError: for names that are unknown, and for a `base` where there is nothing to add.
        InputError: for a folder that lacks a component (by name), a class that the installed
            libraries have not, and a file that is damaged or of another architecture.
    """
    others = dict(parts or {})
    path = Path(spec).expanduser()
    if _is_denoiser(path):
        if base is None:
            raise _alone(spec, path)
        source = _whole(base)
        denoisers = [part.name for part in source.parts if part.stage == DENOISE]
        if "transformer" in others or "unet" in others:
            raise UsageError(f"`{spec}` is a denoiser already: leave out the other one.")
        others = {denoisers[0]: path, **others}
    elif base is not None:
        raise UsageError(
            f"`{spec}` is a whole pipeline, so there is nothing for a base to add: give parts of "
            "it as files instead."
        )
    else:
        source = _whole(spec)
    if others:
        source = replace(source, parts=replaced(source.parts, others, whole=source.spec))
    random = any(part.random for part in source.parts)
    return replace(source, spec=spec, random=random)


def load_pipeline(
    source: PipelineSource,
    *,
    dtype: torch.dtype | None = None,
    weights: str | None = None,
    scheduler: str | None = None,
) -> Any:
    """The pipeline with its weights on the host, in eval mode and without gradients.

    Args:
        source: what `find_pipeline` found.
        dtype: of all networks; by default that in which the denoiser is stored, but a VAE that is
            stored in float32 stays so. Random ones are in bfloat16, but for Wan's VAE and `-mini`,
            which are in float32.
        weights: of the denoiser: ``bf16``, or ``fp8``, which only runs once it is fitted.
        scheduler: instead of its own: a class of diffusers, or a short name such as ``unipc``.

    Raises:
        UsageError: for names that are unknown, before anything is read.
        InputError: for weights that are missing or damaged, and a hub that is not reached.
    """
    if weights is not None and weights not in _WEIGHTS:
        raise UsageError(f"Weights `{weights}` are unknown: use {', '.join(_WEIGHTS)}.")
    if scheduler is not None:
        scheduler_class(scheduler)
    source = _fetched(source)
    for part in source.parts:
        if weights is not None and part.stage == DENOISE and part.path is not None:
            _refuse_packed_small(part.path, weights)
    with LOADING, _no_bars():
        dtypes = _dtypes(source, dtype or (torch.bfloat16 if weights == "bf16" else None))
        networks = {part.name: load_part(part, dtype=dtypes[part.name]) for part in source.parts}
        for part in source.parts:
            if part.stage == DENOISE and weights == "fp8":
                quantise(networks[part.name])
            elif part.stage == DENOISE and weights == "bf16":
                widen(networks[part.name], torch.bfloat16)
                cast_part(networks[part.name], part, dtype=torch.bfloat16)
        with said_by_us(f"`{source.spec}`"):
            pipe = assembled(source, networks)
            if scheduler is not None:
                pipe.scheduler = exchanged(pipe.scheduler, scheduler)
    return pipe


def stored_dtype(part: Part) -> torch.dtype:
    """What most of a part's weights are stored in, by their headers; of random ones the usual.

    Raises `InputError` where they cannot be read.
    """
    if part.path is not None:
        return main_dtype(part.path)
    if part.pipeline.endswith("-mini") or part.class_name == "AutoencoderKLWan":
        return torch.float32
    return torch.bfloat16


def _dtypes(source: PipelineSource, dtype: torch.dtype | None) -> dict[str, torch.dtype]:
    """Of each part: encoders hand what they make to the denoiser, and pipelines do not cast it."""
    if dtype is not None:
        return {part.name: dtype for part in source.parts}
    own = {part.name: stored_dtype(part) for part in source.parts}
    common = next(own[part.name] for part in source.parts if part.stage == DENOISE)
    wide = {part.name for part in source.parts if part.stage == DECODE} & {
        name for name, stored in own.items() if stored == torch.float32
    }
    return {name: torch.float32 if name in wide else common for name in own}


def _refuse_packed_small(path: Path, weights: str) -> None:
    if header_of(path).format == "gguf":
        raise UsageError(
            f"`{path}` is GGUF, whose weights stay as they are: leave out weights `{weights}`."
        )


def _is_denoiser(path: Path) -> bool:
    """A file, or a folder that is one component's and not a whole pipeline's."""
    if path.is_file():
        return True
    return (path / "config.json").is_file() and not (path / _INDEX).is_file()


def _alone(spec: str, path: Path) -> UsageError:
    known = recognise(header_of(path))
    name = None if known is None else known.name.partition("/")[0]
    what = "" if known is None else f", a {known.class_name} ({known.name})"
    example = f"random:{name}" if name in PIPELINES else "the folder of its pipeline"
    return UsageError(
        f"`{spec}` is one network{what}: say with --base where the rest of its pipeline comes "
        f"from, such as {example}."
    )


def _whole(spec: str) -> PipelineSource:
    kind, _, name = spec.partition(":")
    if kind == "random":
        found = find_parts(spec)
        if name not in PIPELINES:
            raise UsageError(f"`{spec}` is one network, where a whole pipeline is needed.")
        pipeline = PIPELINES[name]
        return PipelineSource(spec, pipeline.class_name, found, True, pipeline.size, name)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _of_folder(spec, path, hub=None)
    if path.is_file():
        raise UsageError(f"`{spec}` is one network, where a whole pipeline is needed.")
    if is_hub_id(spec):
        return _of_folder(spec, fetch_configurations(spec), hub=spec)
    raise InputError(
        f"Pipeline `{spec}` is neither a folder, a file nor a hub id; use random:NAME for one that "
        f"needs no file, such as random:{next(iter(PIPELINES))}."
    )


def _of_folder(spec: str, folder: Path, *, hub: str | None) -> PipelineSource:
    index = folder / _INDEX
    if not index.is_file():
        raise InputError(f"`{spec}` is no pipeline's folder: it has no {_INDEX}.")
    content = read_json(spec, index)
    class_name = str(content.get("_class_name"))
    cls = class_named("diffusers", class_name)
    if not inspect.isclass(cls) or not issubclass(cls, class_named("diffusers", _BASE)):
        raise InputError(f"`{spec}`: its {_INDEX} names `{class_name}`, which is no pipeline.")
    _check_components(spec, folder, content, cls)
    found = find_parts(str(folder))
    if hub is None:
        for part in found:
            assert part.path is not None
            header_of(part.path)
    denoisers = [part for part in found if part.stage == DENOISE]
    if not denoisers:
        raise InputError(f"`{spec}` has no denoiser among its components.")
    size = _usual_size(denoisers[0], found)
    return PipelineSource(spec, class_name, found, False, size, folder=folder, hub=hub)


_BASE = "DiffusionPipeline"


def _usual_size(denoiser: Part, parts: tuple[Part, ...]) -> Size:
    """What it says itself, as UNets do in latent pixels; else that of the pipelines we know."""
    side = denoiser.config.get("sample_size")
    if isinstance(side, int) and denoiser.class_name.startswith("UNet"):
        widths = [part.config.get("block_out_channels", ()) for part in parts if part.name == "vae"]
        scale = 2 ** (len(widths[0]) - 1) if widths and widths[0] else 8
        return Size(side * scale, side * scale)
    same = (each for each in PIPELINES.values() if each.class_name == denoiser.pipeline_class)
    known = next(same, None)
    return usual_size(denoiser) if known is None else known.size


def _check_components(spec: str, folder: Path, content: Mapping[str, Any], cls: Any) -> None:
    """Each that is named is there, of a class that can be loaded; each that is needed is named."""
    for name, entry in content.items():
        if not isinstance(entry, list) or len(entry) != 2 or entry[1] is None:
            continue
        library, class_name = map(str, entry)
        if library in ("diffusers", "transformers"):
            class_named(library, class_name)
        elif class_name != _STAND_IN and not _is_of_pipelines(library, class_name):
            raise InputError(
                f"`{spec}`: its {name} is a {class_name} of `{library}`, which cannot be loaded."
            )
        if not (folder / name).is_dir() and class_name != _STAND_IN:
            raise InputError(
                f"`{spec}` is not whole: its {name} ({class_name}) is missing, {folder / name} is "
                "no folder."
            )
    optional = set(cls._optional_components)
    for name, given in inspect.signature(cls.__init__).parameters.items():
        entry = content.get(name)
        named = isinstance(entry, list) and entry[-1] is not None
        needed = given.default is inspect.Parameter.empty and name not in optional
        if name not in ("self", "safety_checker", "feature_extractor") and needed and not named:
            raise InputError(
                f"`{spec}` is not whole: a {cls.__name__} needs a {name}, and {_INDEX} names none."
            )


def _is_of_pipelines(library: str, class_name: str) -> bool:
    """Whether diffusers has it beside a pipeline, as it has safety checkers."""
    from diffusers import pipelines

    return hasattr(getattr(pipelines, library, None), class_name)


def _fetched(source: PipelineSource) -> PipelineSource:
    """With its weights on this machine, all but those of parts that come from somewhere else."""
    if source.hub is None:
        return source
    own = [part for part in source.parts if _is_inside(part, source.folder)]
    others = [part.name for part in source.parts if part not in own]
    folder = fetch_pipeline(source.hub, without=others)
    moved = tuple(
        replace(part, spec=str(folder / part.name), path=folder / part.name)
        if part in own
        else part
        for part in source.parts
    )
    return replace(source, parts=moved, folder=folder, hub=None)


@contextmanager
def _no_bars() -> Iterator[None]:
    """While inside, the libraries show no bars of their own."""
    from diffusers.utils import logging as diffusers
    from transformers.utils import logging as transformers

    shown = [each for each in (diffusers, transformers) if each.is_progress_bar_enabled()]
    for each in shown:
        each.disable_progress_bar()
    try:
        yield
    finally:
        for each in shown:
            each.enable_progress_bar()


def _is_inside(part: Part, folder: Path | None) -> bool:
    return part.path is not None and folder is not None and part.path.parent == folder


def assembled(source: PipelineSource, networks: Mapping[str, Any]) -> Any:
    """A pipeline of these networks, by their names, with everything else that `source` has."""
    cls = class_named("diffusers", source.class_name)
    if source.folder is not None:
        content = read_json(source.spec, source.folder / _INDEX)
        if any(isinstance(each, list) and each[-1] == _STAND_IN for each in content.values()):
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
        elif class_name == _STAND_IN:
            made[name] = stand_ins[name]
        else:
            kind = class_named(library, class_name)
            made[name] = kind.from_pretrained(source.folder / name, local_files_only=True)
    return made
