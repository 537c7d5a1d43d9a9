"""From a SPEC to a VAE: ``random:NAME``, ``mini:NAME``, a folder, a file, or a hub id."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.adapters.known.architectures import ARCHITECTURES, SOUND, architecture
from tightfit.adapters.libraries import LOADING, class_named, quiet, said_by_us
from tightfit.adapters.packed import (
    load_diffusers,
    packed_dtype,
    packed_headers,
    packed_tensors,
)
from tightfit.adapters.traits import SUPPORTED, traits_of
from tightfit.errors import InputError, UsageError
from tightfit.run.vae import Traits, Vae
from tightfit.weigh.files.hash_lists import known_hash
from tightfit.weigh.files.headers import read_header
from tightfit.weigh.files.tensor_header import Header

_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_SEED = 0
_LDM_MARKS = {
    "AutoencoderKLWan": ("decoder.middle.0.residual.0.gamma",),
    "AutoencoderKL": (
        "decoder.mid.block_1.conv1.weight",
        "first_stage_model.decoder.mid.block_1.conv1.weight",
        "vae.decoder.mid.block_1.conv1.weight",
    ),
}


@dataclass(frozen=True)
class Source:
    """Where a VAE comes from, before any weight is read.

    Attributes:
        spec: as the user wrote it.
        class_name: of diffusers.
        traits: what its shapes mean.
        path: the folder or file, None for random weights and hub ids.
        arguments: of the constructor, for random weights and known files.
        subfolder: within a hub repository.
        upcast: its configuration says that float16 overflows.
    """

    spec: str
    class_name: str
    traits: Traits
    path: Path | None = None
    arguments: Mapping[str, Any] | None = None
    subfolder: str | None = None
    upcast: bool = False

    @property
    def random(self) -> bool:
        """Whether the weights are random."""
        return self.path is None and self.arguments is not None


def find_vae(spec: str) -> Source:
    """Find out what `spec` is without reading weights.

    Raises `UsageError` for an unknown name and `InputError` for a folder or file that is no VAE.
    """
    kind, colon, name = spec.partition(":")
    if colon and kind == "random":
        known = architecture(name)
        return _described(spec, known.class_name, None, known.arguments)
    if colon and kind == "mini":
        return _folder(spec, _mini(name))
    path = Path(spec).expanduser()
    if path.is_dir():
        return _folder(spec, path)
    if path.is_file():
        return _file(spec, path)
    if _HUB.fullmatch(spec):
        return _hub(spec)
    raise InputError(
        f"VAE `{spec}` is neither a folder, a file nor a hub id; use random:NAME or mini:NAME for "
        "one that needs no file."
    )


def fetch_vae(source: Source) -> Source:
    """`source` with its files on this machine: those of a hub id are downloaded, or found cached.

    Raises `InputError` where they cannot be had.
    """
    if source.random or source.path is not None:
        return source
    from huggingface_hub import snapshot_download

    inside = f"{source.subfolder}/" if source.subfolder else ""
    with said_by_us(f"VAE `{source.spec}`"):
        folder = snapshot_download(
            source.spec, allow_patterns=[f"{inside}*.json", f"{inside}*.safetensors"]
        )
    return _folder(source.spec, Path(folder) / inside)


def load_vae(source: Source, *, dtype: torch.dtype | None = None) -> Vae:
    """Load the weights to the host, through diffusers' own loaders, in `dtype` or as stored.

    Those that `tightfit pack` wrote are unpacked, to the same bits.


    Raises `InputError` when the file does not hold what it should.
    """
    from tightfit.adapters.diffusers_vae import adapt

    source = fetch_vae(source)
    with said_by_us(f"VAE `{source.spec}`"):
        module = _module(source, dtype)
    module.eval().requires_grad_(False)
    return adapt(module, random=source.random)


def outline_vae(source: Source, *, dtype: torch.dtype | None = None) -> Vae | None:
    """The VAE on the meta device: shapes without weights, to plan on before anything is read.

    None for a hub id that was not fetched.
    """
    from tightfit.adapters.diffusers_vae import adapt

    cls = _class(source.class_name)
    with said_by_us(f"VAE `{source.spec}`"), torch.device("meta"):
        if source.arguments is not None:
            module: nn.Module = cls(**source.arguments)
        elif source.path is not None:
            module = cls.from_config(cls.load_config(source.path))
        else:
            return None
    return adapt(_cast(module, dtype or stored_dtype(source)).eval().requires_grad_(False))


def stored_dtype(source: Source) -> torch.dtype:
    """What the weights are stored in, by the header of their file; float32 where there is none."""
    from safetensors import safe_open

    if source.path is None:
        return torch.float32
    files = _files_of(source.path)
    if not files:
        return torch.float32
    if packed_headers(files[0]) is not None:
        return packed_dtype(files[0]) or torch.float32
    with said_by_us(f"VAE `{source.spec}`"), safe_open(files[0], framework="pt") as file:
        for key in file.keys():  # noqa: SIM118 (it is no dict)
            dtype: torch.dtype = file.get_slice(key)[:0].dtype
            if dtype.is_floating_point:
                return dtype
    return torch.float32


def known_hashes(source: Source) -> dict[str, str]:
    """Of the files of `source`, as lists beside them or a hub's cache tell; none is hashed."""
    files = [] if source.path is None else _files_of(source.path)
    known = {str(file): known_hash(file) for file in files}
    return {file: told for file, told in known.items() if told is not None}


def _files_of(path: Path) -> list[Path]:
    """Weights that a loader takes by default come first, variants (``….fp16.…``) after them."""
    if path.is_file():
        return [path]
    found = sorted(path.glob("*.safetensors"), key=lambda each: ("." in each.stem, each.name))
    return found or list(read_header(path).files)


def parse_dtype(name: str) -> torch.dtype | None:
    """``auto`` is None. Raises `UsageError` for an unknown name."""
    known = {
        "auto": None,
        "float32": torch.float32,
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
    }
    if name not in known:
        raise UsageError(f"--dtype `{name}` is unknown: use {', '.join(known)}.")
    return known[name]


def _module(source: Source, dtype: torch.dtype | None) -> nn.Module:
    cls = _class(source.class_name)
    if source.random:
        assert source.arguments is not None
        with LOADING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            module: nn.Module = cls(**source.arguments)
        return _cast(module, dtype)
    assert source.path is not None
    if source.path.is_dir():
        if packed_headers(source.path) is not None:
            return load_diffusers(cls, source.path, dtype)
        return _loaded(cls.from_pretrained(source.path, torch_dtype=dtype, local_files_only=True))
    return _from_file(cls, source, dtype)


def _cast(module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """All floating weights in `dtype`, without the advice that diffusers' own `to` logs."""
    return module if dtype is None else nn.Module.to(module, dtype)


def _loaded(module: nn.Module) -> nn.Module:
    """Typed: diffusers' loaders are not."""
    return module


def _from_file(cls: Any, source: Source, dtype: torch.dtype | None) -> nn.Module:
    """A single file: in diffusers' own key names, or in those of the original checkpoint."""
    assert source.path is not None
    if source.arguments is None:
        raise InputError(f"VAE `{source.spec}` has keys of an architecture that is not known here.")
    original = _original_mark(_header(source.path), source.class_name)
    if original is not None:
        given: Any = str(source.path)
        if packed_headers(source.path) is not None:
            given = packed_tensors(source.path, prefix=original.partition("decoder.")[0])
        with tempfile.TemporaryDirectory() as folder, torch.device("meta"):
            cls(**source.arguments).save_config(folder)
            converted: nn.Module = cls.from_single_file(
                given, config=folder, torch_dtype=dtype, local_files_only=True
            )
        return converted
    with torch.device("meta"):
        module: nn.Module = cls(**source.arguments)
    module.load_state_dict(_tensors(source.path), assign=True)
    return _cast(module, dtype)


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path) if packed_headers(path) is None else packed_tensors(path)


def _mini(name: str) -> Path:
    folder = resources.files("tightfit.adapters") / "minis" / name
    path = Path(str(folder))
    if not name or not path.is_dir():
        raise UsageError(f"VAE `mini:{name}` is unknown: shipped is mini:wan2.1-vae.")
    return path


def _folder(spec: str, path: Path) -> Source:
    """A VAE's own folder, or the folder of a pipeline that has one."""
    for folder in (path, path / "vae"):
        config = folder / "config.json"
        if not config.is_file():
            continue
        try:
            content = json.loads(config.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputError(f"VAE `{spec}`: {config} is not readable JSON.") from None
        if isinstance(content, dict) and "_class_name" in content:
            found = _described(spec, str(content["_class_name"]), folder, None, content)
            _checked(folder, f"VAE `{spec}` cannot be loaded")
            return found
    raise InputError(f"VAE `{spec}` is a folder without a diffusers config.json of a VAE.")


def _file(spec: str, path: Path) -> Source:
    """A safetensors file, recognised by the names and shapes in its header."""
    shapes = _header(path)
    for known in (*ARCHITECTURES.values(), *SOUND.values()):
        if _original_mark(shapes, known.class_name) is not None:
            continue
        if _shapes_of(known.class_name, known.arguments) == shapes:
            return _described(spec, known.class_name, path, known.arguments)
    for class_name in _LDM_MARKS:
        if _original_mark(shapes, class_name) is not None:
            name = _original_name(class_name, shapes)
            return _described(spec, class_name, path, ARCHITECTURES[name].arguments)
    raise InputError(
        f"VAE `{spec}` has no keys of a VAE that is known here; a diffusers folder with its "
        "config.json also works."
    )


def _hub(spec: str) -> Source:
    """A hub repository: its configuration is fetched by diffusers' own machinery."""
    cls = _class("AutoencoderKL")
    for subfolder in (None, "vae"):
        try:
            with quiet():
                config = cls.load_config(spec, subfolder=subfolder)
        except (OSError, ValueError):
            continue
        if "_class_name" in config and config["_class_name"] in SUPPORTED:
            found = _described(spec, config["_class_name"], None, None, config)
            return replace(found, subfolder=subfolder)
    raise InputError(
        f"VAE `{spec}` is no folder or file here, and no VAE with that id could be fetched from "
        "the hub."
    )


def _described(
    spec: str,
    class_name: str,
    path: Path | None,
    arguments: Mapping[str, Any] | None,
    config: Mapping[str, Any] | None = None,
) -> Source:
    """Traits from a configuration; what it leaves out has the class's defaults."""
    if class_name not in SUPPORTED:
        traits_of(class_name, {})
    full = {**_defaults(class_name), **(arguments or {}), **(config or {})}
    traits = traits_of(class_name, full)
    return Source(
        spec, class_name, traits, path, arguments, upcast=bool(full.get("force_upcast", False))
    )


def _defaults(class_name: str) -> dict[str, Any]:
    import inspect

    parameters = inspect.signature(_class(class_name).__init__).parameters
    return {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


def _class(name: str) -> Any:
    return class_named("diffusers", name)


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a safetensors file, packed or not, or in a pickle that is allowed.

    Raises `InputError` if it is none, or its size is not what its header says.
    """
    header = _checked(path, f"VAE `{path}` is not a readable checkpoint")
    if header.format == "gguf":
        raise InputError(f"VAE `{path}` is a GGUF file: a VAE is loaded from safetensors.")
    return {each.name: each.shape for each in header.tensors}


def _checked(path: Path, says: str) -> Header:
    """The header of a file, or of the weights in a folder, against their real size."""
    try:
        return read_header(path)
    except InputError as error:
        raise InputError(f"{says}: {str(error).removeprefix('Cannot weigh ')}") from None


def _shapes_of(class_name: str, arguments: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"), quiet():
        module = _class(class_name)(**arguments)
    return {key: tuple(value.shape) for key, value in module.state_dict().items()}


def _original_mark(shapes: Mapping[str, object], class_name: str) -> str | None:
    """The key that only an original checkpoint has; None where there is none of these."""
    return next((mark for mark in _LDM_MARKS.get(class_name, ()) if mark in shapes), None)


def _original_name(class_name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Which VAE an original checkpoint holds, by the width of its latent."""
    if class_name == "AutoencoderKLWan":
        wide = any(shape and shape[0] == 48 for shape in shapes.values())
        return "wan2.2-vae" if wide else "wan2.1-vae"
    inner = next(shape for key, shape in shapes.items() if key.endswith("decoder.conv_in.weight"))
    return "flux-vae" if inner[1] == 16 else "sdxl-vae"
