"""From a SPEC to a whole pipeline of diffusers: what it is, and then itself, on the host."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tightfit.adapters.known.pipelines import PIPELINES
from tightfit.adapters.libraries import LOADING, class_named, said_by_us
from tightfit.adapters.loading.assembling import INDEX, assembled
from tightfit.adapters.loading.eight_bits import quantise, widen
from tightfit.adapters.loading.folder import check_components, size_of
from tightfit.adapters.loading.hub import fetch_configurations, fetch_pipeline, is_hub_id
from tightfit.adapters.loading.part_file import header_of, main_dtype
from tightfit.adapters.loading.replaced import replaced
from tightfit.adapters.loading.schedulers import exchanged, scheduler_class, usual_of
from tightfit.adapters.parts import (
    DECODE,
    DENOISE,
    Part,
    cast_part,
    find_parts,
    load_part,
    read_json,
)
from tightfit.errors import InputError, UsageError
from tightfit.plan.size import Size
from tightfit.weigh.files.recognise import recognise

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


def scheduler_of(source: PipelineSource) -> tuple[str, Mapping[str, Any]] | None:
    """Class and configuration of its scheduler; None where that is not known yet."""
    if source.known is not None:
        return usual_of(source.known)
    path = None if source.folder is None else source.folder / "scheduler" / "scheduler_config.json"
    if path is None or not path.is_file():
        return None
    config = read_json(source.spec, path)
    return str(config.get("_class_name")), config


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
    return (path / "config.json").is_file() and not (path / INDEX).is_file()


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
    kind, colon, name = spec.partition(":")
    if colon and kind == "random":
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
    index = folder / INDEX
    if not index.is_file():
        raise InputError(f"`{spec}` is no pipeline's folder: it has no {INDEX}.")
    content = read_json(spec, index)
    class_name = str(content.get("_class_name"))
    cls = class_named("diffusers", class_name)
    if not inspect.isclass(cls) or not issubclass(cls, class_named("diffusers", _BASE)):
        raise InputError(f"`{spec}`: its {INDEX} names `{class_name}`, which is no pipeline.")
    check_components(spec, folder, content, cls)
    found = find_parts(str(folder))
    if hub is None:
        for part in found:
            assert part.path is not None
            header_of(part.path)
    denoisers = [part for part in found if part.stage == DENOISE]
    if not denoisers:
        raise InputError(f"`{spec}` has no denoiser among its components.")
    size = size_of(denoisers[0], found)
    return PipelineSource(spec, class_name, found, False, size, folder=folder, hub=hub)


_BASE = "DiffusionPipeline"


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
