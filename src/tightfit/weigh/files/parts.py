"""A checkpoint with several models in one file, taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tightfit.weigh.files.recognise import recognise
from tightfit.weigh.files.tensor_header import Header

_DENOISER = "denoiser"
_REST = "rest"
_PREFIXES = {
    "model.diffusion_model.": _DENOISER,
    "first_stage_model.": "vae",
    "vae.": "vae",
    "audio_vae.": "audio_vae",
    "vocoder.": "vocoder",
    "control_model.": "controlnet",
    "cond_stage_model.transformer.": "text:clip_l",
    "cond_stage_model.model.": "text:clip_l",
    "conditioner.embedders.0.transformer.": "text:clip_l",
    "conditioner.embedders.0.model.": "text:clip_g",
    "conditioner.embedders.1.model.": "text:clip_g",
}
"""What stands before the names of a part, in the checkpoints of SD 1.5, SDXL and others."""
_TEXT = "text_encoders."
_TEXT_ORDER = ("text:clip_l", "text:clip_g")
"""The others (T5, language models) come after these, as in diffusers' pipelines."""
_ALONE = ("model.model.", "diffusion_model.", "transformer.", "net.", "module.")
"""Prefixes that say nothing of the part, where all tensors of a file have them."""


def parts_of_header(header: Header) -> dict[str, Header]:
    """Part by part, under the names that diffusers' pipelines use, each with its own names.

    Parts are ``transformer`` or ``unet``, ``vae``, ``text_encoder``, ``text_encoder_2`` …; what
    belongs to none (a schedule, averaged weights that training left) is ``rest``. A file with one
    model in it has one part: ``model`` where it is not known which. Together they weigh what the
    file weighs.
    """
    groups: dict[str, dict[str, str]] = {}
    for tensor in header.tensors:
        group, name = _place(tensor.name)
        groups.setdefault(group, {})[tensor.name] = name
    if set(groups) <= {_REST}:
        alone = without_prefix(header)
        known = recognise(alone)
        return {known.part if known else "model": alone}
    names = _part_names(groups)
    parts = {names[group]: _part(header, bare) for group, bare in groups.items()}
    return {name: parts[name] for name in sorted(parts, key=_in_pipelines)}


def without_prefix(header: Header) -> Header:
    """`header` without what stands before all of its names and says nothing."""
    for prefix in (*_ALONE, *_PREFIXES):
        if header.tensors and all(tensor.name.startswith(prefix) for tensor in header.tensors):
            bare = {tensor.name: tensor.name.removeprefix(prefix) for tensor in header.tensors}
            return _part(header, bare)
    return header


def _place(name: str) -> tuple[str, str]:
    for prefix, group in _PREFIXES.items():
        if name.startswith(prefix):
            return group, name.removeprefix(prefix)
    if name.startswith(_TEXT) and name.count(".") > 1:
        _, encoder, rest = name.split(".", 2)
        return f"text:{encoder}", rest.removeprefix("transformer.")
    return _REST, name


def _part(header: Header, bare: Mapping[str, str]) -> Header:
    tensors = tuple(
        replace(tensor, name=bare[tensor.name]) for tensor in header.tensors if tensor.name in bare
    )
    ties = {other: bare[kept] for other, kept in header.ties.items() if kept in bare}
    return replace(header, tensors=tensors, ties=ties)


def _part_names(groups: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    texts = [group for group in groups if group.startswith("text:")]
    texts.sort(key=lambda group: _TEXT_ORDER.index(group) if group in _TEXT_ORDER else 9)
    names = {group: group for group in groups}
    for number, group in enumerate(texts, start=1):
        names[group] = "text_encoder" if number == 1 else f"text_encoder_{number}"
    if _DENOISER in groups:
        unet = any(name.startswith("input_blocks.") for name in groups[_DENOISER].values())
        names[_DENOISER] = "unet" if unet else "transformer"
    return names


def _in_pipelines(part: str) -> tuple[int, str]:
    """Text encoders, denoiser, VAE, what is left: the order in which they work."""
    order = ("text_encoder", "transformer", "unet", "controlnet", "vae")
    return next((i for i, name in enumerate(order) if part.startswith(name)), len(order)), part
