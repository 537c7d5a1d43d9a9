"""From a SPEC to the parts of a pipeline, and to their shapes without weights."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.adapters.known.architectures import ARCHITECTURES, Architecture
from tightfit.adapters.known.encoders import ENCODERS
from tightfit.adapters.known.pipelines import PIPELINES
from tightfit.adapters.libraries import LOADING, class_named, said_by_us
from tightfit.adapters.loading.part_file import header_of, in_eight_bits, load_file, refuse_missing
from tightfit.adapters.loading.random_weights import draw, unfilled
from tightfit.adapters.packed import load_diffusers, load_transformers, packed_headers
from tightfit.adapters.specs import find_vae
from tightfit.adapters.traits import SUPPORTED
from tightfit.errors import InputError, UsageError
from tightfit.weigh import Kind, walk, weights

ENCODE_TEXT, ENCODE_IMAGE, DENOISE, DECODE, ENCODE = (
    "encode text",
    "encode image",
    "denoise",
    "decode",
    "encode",
)
STAGES = (ENCODE_TEXT, ENCODE_IMAGE, DENOISE, DECODE)
"""In the order in which a pipeline goes through them; a VAE that encodes does so before."""
_LIBRARIES = ("diffusers", "transformers")
_NO_WEIGHTS = ("Scheduler", "Tokenizer", "Processor", "Extractor")
_BACKENDS = ("Fast", "Pil")
"""What transformers puts behind the name of a tokenizer or a processor."""
_SEED = 0


@dataclass(frozen=True)
class Part:
    """A network of a pipeline, before any weight is read.

    Attributes:
        spec: names this part alone, such as ``random:flux.1-dev/vae`` or a folder.
        pipeline: the name of the whole; of a part that stands alone, its own.
        name: as the pipeline calls it: ``transformer``, ``text_encoder_2``.
        stage: what it is for, one of `STAGES`; a VAE's is ``decode``, though it also encodes.
        library: ``diffusers`` or ``transformers``.
        class_name: of that library.
        config: arguments of the constructor, or the configuration as it is stored.
        path: the folder with the weights, or their one file; None where they are random.
        random: whether the weights are random.
        pipeline_class: of diffusers, where there is a whole.
    """

    spec: str
    pipeline: str
    name: str
    stage: str
    library: str
    class_name: str
    config: Mapping[str, Any] = field(hash=False)
    path: Path | None = None
    random: bool = False
    pipeline_class: str | None = None


def find_parts(spec: str) -> tuple[Part, ...]:
    """The parts that `spec` names, in the order of their stages; no weight is read.

    `spec` is ``random:`` and a pipeline, one part of it, a VAE or an encoder by its own name
    (``t5-xxl``); ``mini:NAME``; the folder of a pipeline (``model_index.json``) or of a part of one
    (``config.json``). Components without weights are left out, and so are those of other libraries.

    Raises `UsageError` for a name that is unknown, with those near it, and `InputError` for a
    folder that is none of these.
    """
    kind, colon, name = spec.partition(":")
    if colon and kind == "random":
        return _named(name)
    if colon and kind == "mini":
        path = find_vae(spec).path
        assert path is not None
        return (stand_alone(spec, path),)
    path = Path(spec).expanduser()
    if (path / "model_index.json").is_file():
        return _whole(spec, path)
    if (path / "config.json").is_file():
        return (stand_alone(spec, path),)
    if path.is_dir():
        raise InputError(f"`{spec}` is a folder without a model_index.json or a config.json.")
    if path.is_file():
        raise InputError(
            f"`{spec}` is a file, which says nothing about how it is called; give the folder it is "
            "in, or random:NAME with the name of its architecture."
        )
    raise InputError(
        f"`{spec}` is neither a folder nor random:NAME or mini:NAME; a hub id has to be fetched "
        "first."
    )


def stages_of(part: Part) -> tuple[str, ...]:
    """What a part can be called for; only a VAE does two things."""
    return (DECODE, ENCODE) if part.stage == DECODE else (part.stage,)


def full_config(part: Part) -> dict[str, Any]:
    """The configuration of a part of diffusers, with its class's defaults for what is left out."""
    return {**_defaults(part.library, part.class_name), **part.config}


def outline_part(part: Part, *, dtype: torch.dtype) -> nn.Module:
    """The network on the meta device: shapes without weights, ties made, ready to be called.

    In `dtype`, except for what the library's own loader would keep in float32. Buffers that are
    not stored are there too. Of a quantised model these are the shapes before it was.

    Raises `InputError` for a class or a configuration that the installed libraries do not take.
    """
    with said_by_us(f"`{part.spec}`"), torch.device("meta"):
        module = _built(part)
        cast_part(module, part, dtype=dtype)
    _rest_to_meta(module)
    return module.eval().requires_grad_(False)


def load_part(part: Part, *, dtype: torch.dtype) -> nn.Module:
    """The network with its weights on the host: as stored, or seeded random ones.

    In `dtype`, with the exceptions of `outline_part`. The caller's random state stays. Random
    weights are seeded by their paths (`random_weights.draw`); a VAE's are those of `load_vae`,
    which its class draws in float32 first.

    What `tightfit pack` wrote is unpacked, to the same bits. Weights in eight bits and those of
    GGUF stay as they are stored.

    Raises `InputError` where the folder or the file cannot be loaded, or lacks a weight.
    """
    with said_by_us(f"`{part.spec}`"), LOADING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        if part.path is None and part.stage == DECODE:
            module = _built(part)
            cast_part(module, part, dtype=dtype)
        elif part.path is None:
            module = bare_part(part, dtype=dtype)
            draw(module)
        elif part.path.is_file() or in_eight_bits(header_of(part.path)):
            cls = class_named(part.library, part.class_name)
            config = copy.deepcopy(dict(part.config))
            module = load_file(cls, config, part.path, dtype=dtype, library=part.library)
            if not _is_small(part.path):
                cast_part(module, part, dtype=dtype)
        else:
            module = _loaded(part, part.path, dtype)
    return module.eval().requires_grad_(False)


def bare_part(part: Part, *, dtype: torch.dtype) -> nn.Module:
    """The network without memory for its parameters, which are on the meta device.

    Buffers and tables, stored or not, have the values that its class gives them. In `dtype`, with
    the exceptions of `outline_part`.
    """
    with LOADING, unfilled():
        module = _built(part)
    if part.library == "transformers":
        module.tie_weights()  # type: ignore[operator]  # inside, a tie is two parameters
    cast_part(module, part, dtype=dtype)
    return module


def cast_part(module: nn.Module, part: Part, *, dtype: torch.dtype) -> None:
    """All its floats in `dtype`, but for what its library's loader would keep in float32.

    Diffusers keeps the names that a class lists, transformers in float16 alone.
    """
    half = dtype in (torch.float16, torch.bfloat16)
    asked = half if part.library == "diffusers" else dtype is torch.float16
    names = set(getattr(module, "_keep_in_fp32_modules", None) or ()) if asked else set()
    kept = {id(held.tensor) for held in weights(module) if names & set(held.path.split("."))}
    module._apply(  # type: ignore[no-untyped-call]
        lambda tensor: (
            tensor if id(tensor) in kept or not tensor.is_floating_point() else tensor.to(dtype)
        )
    )


@cache
def _defaults(library: str, class_name: str) -> Mapping[str, Any]:
    parameters = inspect.signature(class_named(library, class_name).__init__).parameters
    return {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


def _named(name: str) -> tuple[Part, ...]:
    whole, _, wanted = name.partition("/")
    alone = ARCHITECTURES.get(name) or ENCODERS.get(name)
    if alone is not None:
        slot = "vae" if name in ARCHITECTURES else "text_encoder"
        return (_random(f"random:{name}", name, slot, alone, None),)
    if whole not in PIPELINES:
        known = (*PIPELINES, *ARCHITECTURES, *ENCODERS)
        near = get_close_matches(whole, known, n=4, cutoff=0.5)
        listed = ", ".join(near or PIPELINES)
        raise UsageError(f"Model `random:{name}` is unknown: {_one_of(near)} {listed}.")
    pipeline = PIPELINES[whole]
    if wanted and wanted not in pipeline.parts:
        near = get_close_matches(wanted, pipeline.parts, n=4, cutoff=0.5)
        listed = ", ".join(f"{whole}/{part}" for part in near or pipeline.parts)
        raise UsageError(f"Part `random:{name}` is unknown: {_one_of(near)} {listed}.")
    return tuple(
        _random(f"random:{whole}/{part}", whole, part, architecture, pipeline.class_name)
        for part, architecture in pipeline.parts.items()
        if wanted in ("", part)
    )


def _one_of(near: object) -> str:
    return "near it are" if near else "use one of"


def _random(
    spec: str, pipeline: str, name: str, known: Architecture, pipeline_class: str | None
) -> Part:
    return Part(
        spec,
        pipeline,
        name,
        _stage(name, known.class_name, known.library),
        known.library,
        known.class_name,
        known.arguments,
        random=True,
        pipeline_class=pipeline_class,
    )


def _whole(spec: str, path: Path) -> tuple[Part, ...]:
    """A pipeline's own folder."""
    index = read_json(spec, path / "model_index.json")
    class_name = str(index.get("_class_name"))
    name = path.resolve().name
    parts = []
    for slot, entry in index.items():
        if not isinstance(entry, list) or len(entry) != 2 or entry[0] not in _LIBRARIES:
            continue
        library, component = map(str, entry)
        if _bare(component).endswith(_NO_WEIGHTS):
            continue
        folder = path / slot
        config = read_json(spec, folder / "config.json")
        stage = _stage(slot, component, library)
        parts.append(
            Part(
                str(folder),
                name,
                slot,
                stage,
                library,
                component,
                config,
                folder,
                pipeline_class=class_name,
            )
        )
    if not parts:
        raise InputError(f"Pipeline `{spec}` names no component with weights in model_index.json.")
    return tuple(sorted(parts, key=lambda part: STAGES.index(part.stage)))


def _bare(class_name: str) -> str:
    for backend in _BACKENDS:
        class_name = class_name.removesuffix(backend)
    return class_name


def stand_alone(spec: str, path: Path) -> Part:
    """A component's own folder, perhaps inside that of a pipeline."""
    config = read_json(spec, path / "config.json")
    names = config.get("architectures") or [None]
    diffusers = "_class_name" in config
    class_name = config["_class_name"] if diffusers else names[0]
    if class_name is None:
        raise InputError(f"`{spec}`: its config.json names no class.")
    library = "diffusers" if diffusers else "transformers"
    whole = path.resolve().parent
    inside = (whole / "model_index.json").is_file()
    name = path.resolve().name
    return Part(
        spec,
        whole.name if inside else name,
        name,
        _stage(name, class_name, library),
        library,
        class_name,
        config,
        path,
        pipeline_class=(
            str(read_json(spec, whole / "model_index.json").get("_class_name")) if inside else None
        ),
    )


def read_json(spec: str, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"`{spec}` is not whole: {path} is missing.") from None
    except (OSError, ValueError):
        raise InputError(f"`{spec}`: {path} is not readable JSON.") from None
    if not isinstance(content, dict):
        raise InputError(f"`{spec}`: {path} is not a configuration.")
    return content


def _stage(name: str, class_name: str, library: str) -> str:
    if class_name in SUPPORTED or class_name.startswith(("Autoencoder", "VQ")):
        return DECODE
    if library == "diffusers":
        return DENOISE
    return ENCODE_IMAGE if "Vision" in class_name or name == "image_encoder" else ENCODE_TEXT


def _built(part: Part) -> nn.Module:
    """In the device context and with the random state of the caller."""
    cls = class_named(part.library, part.class_name)
    config = copy.deepcopy(dict(part.config))  # the libraries write into what they are given
    if part.library == "transformers":
        module: nn.Module = cls(cls.config_class.from_dict(config))
        module.tie_weights()  # type: ignore[operator]
        return module
    return _typed(cls.from_config(config))


def _typed(module: nn.Module) -> nn.Module:
    return module


def _loaded(part: Part, folder: Path, dtype: torch.dtype) -> nn.Module:
    """By the library's own loader, unless it would see packed bytes."""
    cls = class_named(part.library, part.class_name)
    transformers = part.library == "transformers"
    if packed_headers(folder) is not None:
        load = load_transformers if transformers else load_diffusers
        return load(cls, folder, dtype)
    keyword = "dtype" if transformers else "torch_dtype"
    module, told = cls.from_pretrained(
        folder, local_files_only=True, output_loading_info=True, **{keyword: dtype}
    )
    refuse_missing(str(folder), told)
    return _typed(module)


def _is_small(path: Path) -> bool:
    """Whether weights are stored in fewer bits than are computed in."""
    header = header_of(path)
    return header.format == "gguf" or in_eight_bits(header)


def _rest_to_meta(module: nn.Module) -> None:
    """Tables that a network keeps as plain attributes were perhaps made on the host by name."""
    for held in list(walk(module)):
        if held.kind is Kind.ATTRIBUTE and held.tensor.device.type != "meta":
            vars(held.owner)[held.name] = _on_meta(vars(held.owner)[held.name])


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, (list, tuple)):
        return type(value)(map(_on_meta, value))
    if isinstance(value, dict):
        return {key: _on_meta(item) for key, item in value.items()}
    return value
