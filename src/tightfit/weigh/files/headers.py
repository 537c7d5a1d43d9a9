"""From a path to a header: one file, the shards of an index, or a model's folder.

No torch is imported and no weight is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tightfit.weigh.files.gguf_header import MAGIC, read_gguf
from tightfit.weigh.files.pickles import KINDS, MAGICS, REFUSED, check_allowed, read_pickle
from tightfit.weigh.files.safetensors_header import read_safetensors
from tightfit.weigh.files.safetensors_layout import LONGEST, Layout, read_layout
from tightfit.weigh.files.tensor_header import Header, TensorHeader, unreadable
from tightfit.weigh.files.ties import without_copies

__all__ = ["Header", "TensorHeader", "component_folders", "read_header", "safetensors_layout"]

_PIPELINE = "model_index.json"
_CONFIG = "config.json"
_INDEX = ".safetensors.index.json"
_PICKLE_INDEX = ".bin.index.json"
_FILE = ".safetensors"
_USUAL = ("diffusion_pytorch_model", "model")
"""What diffusers and transformers call weights, without the ending."""
_POINTER = b"version https://git-lfs"
_LONGEST_POINTER = 1024
_WITHOUT_WEIGHTS = ("Scheduler", "Tokenizer", "Processor", "FeatureExtractor")
"""Words in the class names of pipeline parts that have no weights."""


def read_header(path: Path) -> Header:
    """What `path` holds: a ``.safetensors`` or ``.gguf`` file, an index of shards, or a folder.

    A folder is that of one model, as diffusers and transformers save it; of its variants
    (``….fp16.…``) one is taken only where there is nothing else.

    Raises `InputError` for a path that is missing, damaged, incomplete or of another kind.
    """
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise unreadable(path, "there is no such file or folder")
    if path.name.endswith(".json"):
        return without_copies(_sharded(path), _config(path.parent))
    return without_copies(_single(path), {})


def component_folders(path: Path) -> dict[str, Path]:
    """The parts of a pipeline's folder that have weights, by name, in the order of its index.

    Raises `InputError` where the folder has no ``model_index.json`` or lacks a part named there.
    """
    index = path / _PIPELINE
    if not index.is_file():
        raise unreadable(path, f"it has no {_PIPELINE}, so it is no pipeline's folder")
    parts: dict[str, Path] = {}
    for part, entry in _json(index).items():
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], str):
            continue
        folder = path / part
        if any(word in entry[1] for word in _WITHOUT_WEIGHTS):
            continue
        if not folder.is_dir():
            raise unreadable(path, f"{_PIPELINE} names `{part}` ({entry[1]}), which is not there")
        parts[part] = folder
    return parts


def _folder(path: Path) -> Header:
    weights = _weights_of(path)
    config = _config(path)
    header = _sharded(weights) if weights.name.endswith(".json") else _single(weights)
    header = replace(header, path=path, class_name=_class_name(config))
    return without_copies(header, config)


def _weights_of(path: Path) -> Path:
    """The index or the file that a loader would take."""
    files = sorted(each.name for each in path.iterdir() if each.is_file())
    if _PIPELINE in files:
        raise unreadable(path, "it is a whole pipeline; weigh the folders of its parts")
    for stem in _USUAL:
        for ending in (_INDEX, _FILE):
            if stem + ending in files:
                return path / (stem + ending)
    # diffusers: NAME.safetensors.index.fp16.json, transformers: NAME.fp16.safetensors
    for found in (
        [name for name in files if name.endswith(".json") and ".safetensors.index." in name],
        [name for name in files if name.endswith(_FILE) and "-of-" not in name],
        [name for name in files if name.endswith(".gguf")],
    ):
        if found:
            return path / found[0]
    shards = [name for name in files if name.endswith(_FILE)]
    if shards:
        raise unreadable(path, f"it has shards such as {shards[0]}, but no index of them")
    pickles = [name for name in files if name.endswith(KINDS)]
    if pickles:
        check_allowed(path / pickles[0])
        indices = [name for name in files if name.endswith(_PICKLE_INDEX)]
        return path / (indices or pickles)[0]
    raise unreadable(path, "it holds no .safetensors and no .gguf file")


def safetensors_layout(path: Path) -> Layout:
    """Where the tensors of the safetensors file at `path` lie, packed or not.

    Raises `InputError` for a file that is missing, damaged or of another kind.
    """
    if path.is_dir() or not path.exists():
        raise unreadable(path, "there is no such file")
    if is_gguf(path):
        raise unreadable(path, "it is a GGUF file, where a safetensors file is needed")
    return read_layout(path)


def _single(path: Path) -> Header:
    kind = _kind(path)
    if kind == "pickle":
        return read_pickle(path)
    return read_gguf(path) if kind == "gguf" else read_safetensors(path)


def is_gguf(path: Path) -> bool:
    """Whether it is one, or may be safetensors. Raises `InputError` for pointers and pickles."""
    kind = _kind(path)
    if kind == "pickle":
        raise unreadable(path, REFUSED)
    return kind == "gguf"


def _kind(path: Path) -> str:
    """``gguf``, ``pickle``, or what may be ``safetensors``. Raises `InputError` for pointers."""
    try:
        with path.open("rb", buffering=0) as file:
            start = file.read(_LONGEST_POINTER)
    except OSError as error:
        raise unreadable(path, f"{error.strerror or error}") from None
    if start.startswith(_POINTER):
        raise unreadable(path, _pointer(start))
    if start.startswith(MAGIC):
        return "gguf"
    if path.name.endswith(KINDS) or start.startswith(MAGICS):
        return "pickle"
    return "safetensors"


def _sharded(index: Path) -> Header:
    """All tensors of the shards that `index` names, each from the shard it names for it."""
    places = _json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(n, str) for n in places.values()):
        raise unreadable(index, "it has no `weight_map` from tensors to files")
    names = dict.fromkeys(places.values())
    if not names:
        raise unreadable(index, "its `weight_map` is empty")
    strange = [name for name in names if Path(name).name != name]
    if strange:
        raise unreadable(index, f"it names `{strange[0]}`, which is no file beside it")
    absent = [name for name in names if not (index.parent / name).is_file()]
    if absent:
        raise unreadable(
            index, f"{len(absent)} of its {len(names)} files are not there, such as {absent[0]}"
        )
    shards = {name: _single(index.parent / name) for name in names}
    missing = [key for key, name in places.items() if key not in shards[name].by_name]
    if missing:
        raise unreadable(
            index,
            f"{len(missing)} of its {len(places)} tensors are not in their files: `{missing[0]}` "
            f"is not in {places[missing[0]]}",
        )
    tensors = tuple(
        tensor
        for name, shard in shards.items()
        for tensor in shard.tensors
        if places.get(tensor.name, name) == name
    )
    first = next(iter(shards.values()))
    files = tuple(index.parent / name for name in shards)
    return Header(index, first.format, tensors, first.metadata, files)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    return _json(path) if path.is_file() else {}


def _class_name(config: Mapping[str, Any]) -> str | None:
    named = config.get("_class_name")
    if named is None:
        listed = config.get("architectures")
        named = listed[0] if isinstance(listed, list) and listed else None
    return named if isinstance(named, str) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LONGEST:
            raise unreadable(path, f"it is JSON of more than {LONGEST:,} bytes")
        text = path.read_bytes()
    except OSError as error:
        raise unreadable(path, f"{error.strerror or error}") from None
    if text.startswith(_POINTER):
        raise unreadable(path, _pointer(text))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise unreadable(path, "it is no JSON") from None
    if not isinstance(content, dict):
        raise unreadable(path, "its JSON is no object")
    return content


def _pointer(text: bytes) -> str:
    lines = dict(line.partition(" ")[::2] for line in text.decode(errors="replace").splitlines())
    size = lines.get("size", "")
    real = f" of {int(size):,} bytes" if size.isdecimal() else ""
    return f"it is a git-lfs pointer to a file{real} that was not fetched; run `git lfs pull`"
