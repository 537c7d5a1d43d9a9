"""The folder of a pipeline, before its weights are read: is it whole, and what is it asked for?"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightfit.adapters.known.pipelines import PIPELINES
from tightfit.adapters.known.sizes import usual_size
from tightfit.adapters.libraries import class_named
from tightfit.adapters.loading.assembling import INDEX
from tightfit.adapters.loading.prompts import STAND_IN
from tightfit.adapters.parts import Part
from tightfit.errors import InputError
from tightfit.plan.size import Size


def size_of(denoiser: Part, parts: tuple[Part, ...]) -> Size:
    """What it says itself, as UNets do in latent pixels; else that of the pipelines we know."""
    side = denoiser.config.get("sample_size")
    if isinstance(side, int) and denoiser.class_name.startswith("UNet"):
        widths = [part.config.get("block_out_channels", ()) for part in parts if part.name == "vae"]
        scale = 2 ** (len(widths[0]) - 1) if widths and widths[0] else 8
        return Size(side * scale, side * scale)
    same = (each for each in PIPELINES.values() if each.class_name == denoiser.pipeline_class)
    known = next(same, None)
    return usual_size(denoiser) if known is None else known.size


def check_components(spec: str, folder: Path, content: Mapping[str, Any], cls: Any) -> None:
    """Each that is named is there, of a class that can be loaded; each that is needed is named.

    `content` is the index of the pipeline in `folder`, and `cls` its class. Raises `InputError`.
    """
    for name, entry in content.items():
        if not isinstance(entry, list) or len(entry) != 2 or entry[1] is None:
            continue
        library, class_name = map(str, entry)
        if library in ("diffusers", "transformers"):
            class_named(library, class_name)
        elif class_name != STAND_IN and not _is_of_pipelines(library, class_name):
            raise InputError(
                f"`{spec}`: its {name} is a {class_name} of `{library}`, which cannot be loaded."
            )
        if not (folder / name).is_dir() and class_name != STAND_IN:
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
                f"`{spec}` is not whole: a {cls.__name__} needs a {name}, and {INDEX} names none."
            )


def _is_of_pipelines(library: str, class_name: str) -> bool:
    """Whether diffusers has it beside a pipeline, as it has safety checkers."""
    from diffusers import pipelines

    return hasattr(getattr(pipelines, library, None), class_name)
