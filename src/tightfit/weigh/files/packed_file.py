"""What a file that `tightfit pack` wrote says of itself: texts alone, no torch.

It is an ordinary safetensors file. Each tensor keeps its name; a packed one lies there as bytes
(U8, one axis), any other as it was. The metadata are those of the original, with three more:

- ``tightfit.packed``: the version of this format, 1;
- ``tightfit.header``: the JSON of the original's header as it stood, padding included, compressed
  by zlib, in base64: so types, shapes, order and metadata come back byte for byte;
- ``tightfit.tensors``: JSON, ``{name: [sha256, recipe]}``: the hash of the original bytes in hex,
  and how they are packed, null where they are not. Recipes are the codec's own words
  (`tightfit.place.packing`).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tightfit.weigh.files.safetensors_layout import LONGEST, Layout, parse_layout
from tightfit.weigh.files.tensor_header import unreadable

VERSION = "1"
_FORMAT = "tightfit.packed"
_HEADER = "tightfit.header"
_TENSORS = "tightfit.tensors"
_INDEX = "tightfit.index"
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """One tensor of a packed file.

    Attributes:
        name: in both files.
        sha256: of its bytes in the original, in hex.
        recipe: how they are packed, in the words of the codec; None where they are not.
    """

    name: str
    sha256: str
    recipe: str | None = None


@dataclass(frozen=True)
class Packing:
    """How a packed file came to be.

    Attributes:
        original: the header of the file that was packed.
        tensors: each of them, by its name, in the order of the original's bytes.
    """

    original: Layout
    tensors: Mapping[str, PackedTensor]


def is_packed(metadata: Mapping[str, str]) -> bool:
    """Whether a file with these metadata says that `tightfit pack` wrote it."""
    return _FORMAT in metadata


def read_packing(layout: Layout) -> Packing | None:
    """What the metadata of a file tell; None for a file that is not packed.

    Raises `InputError` where they are of a later version, damaged, or of other tensors.
    """
    if not is_packed(layout.metadata):
        return None
    version = layout.metadata[_FORMAT]
    if version != VERSION:
        raise unreadable(
            layout.path,
            f"it is packed in version `{version}`, and this tightfit reads version {VERSION}: "
            "a newer one may read it",
        )
    original = parse_layout(layout.path, _restored(layout.path, layout.metadata.get(_HEADER)))
    told = _told(layout.path, layout.metadata.get(_TENSORS))
    stored = {entry.name: entry for entry in layout.entries}
    names = [entry.name for entry in original.entries]
    if not set(names) == set(stored) == set(told):
        raise unreadable(layout.path, "it is packed, but its tensors are not those it was made of")
    for entry in original.entries:
        held = stored[entry.name]
        packed = told[entry.name].recipe is not None
        expected = ("U8", (held.nbytes,)) if packed else (entry.dtype, entry.shape)
        if (held.dtype, held.shape) != expected:
            raise unreadable(
                layout.path,
                f"tensor `{entry.name}` is {held.dtype} of shape {list(held.shape)} there, but "
                f"{expected[0]} of shape {list(expected[1])} was written",
            )
    return Packing(original, {name: told[name] for name in names})


def metadata_of(original: Layout, tensors: Mapping[str, PackedTensor]) -> dict[str, str]:
    """The metadata of a packed file."""
    listed = {name: [each.sha256, each.recipe] for name, each in tensors.items()}
    return {
        **original.metadata,
        _FORMAT: VERSION,
        _HEADER: _kept(original.text),
        _TENSORS: json.dumps(listed, separators=(",", ":")),
    }


def packed_index(path: Path, text: bytes, total_bytes: int) -> bytes:
    """An index of packed shards, from `text`, that of the originals; `unpacked_index` undoes it.

    Args:
        path: of the index, for errors.
        text: what the file held.
        total_bytes: of all tensors in the packed shards.

    Raises `InputError` where it is no JSON object.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise unreadable(path, "it is no JSON object")
    metadata = content.get("metadata")
    told = metadata if isinstance(metadata, dict) else {}
    content["metadata"] = {**told, "total_size": total_bytes, _INDEX: _kept(text)}
    return json.dumps(content, indent=2).encode() + b"\n"


def unpacked_index(path: Path, text: bytes) -> bytes | None:
    """The index that a packed one was made of; None where it is not one.

    Raises `InputError` where what was kept is damaged.
    """
    try:
        kept = json.loads(text)["metadata"][_INDEX]
    except (ValueError, RecursionError, TypeError, LookupError):
        return None
    return _restored(path, kept)


def _kept(text: bytes) -> str:
    return base64.b64encode(zlib.compress(text, 9)).decode("ascii")


def _restored(path: Path, kept: object) -> bytes:
    if not isinstance(kept, str):
        raise unreadable(path, "it is packed, but what it was made of is not told")
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b64decode(kept, validate=True), LONGEST)
    except (ValueError, zlib.error):
        text, unpacker = b"", None
    if unpacker is None or not unpacker.eof:
        raise unreadable(path, "it is packed, but what it says of its original is damaged")
    return text


def _told(path: Path, text: str | None) -> dict[str, PackedTensor]:
    try:
        listed = json.loads(text or "")
        told = {name: _one(name, *entry) for name, entry in listed.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise unreadable(path, "it is packed, but how is damaged") from None
    return told


def _one(name: str, sha256: object, recipe: object) -> PackedTensor:
    if not isinstance(sha256, str) or len(sha256) != 64 or not _HEX.issuperset(sha256):
        raise ValueError("no hash")
    if recipe is not None and not isinstance(recipe, str):
        raise ValueError("no recipe")
    return PackedTensor(name, sha256, recipe)
