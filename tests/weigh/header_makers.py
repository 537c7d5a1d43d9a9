"""Files with true headers and no weights: what lies behind a header is a hole in the file."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from tightfit.weigh.files.ggml_types import BLOCK_TYPES
from tightfit.weigh.files.headers import Header, TensorHeader
from tightfit.weigh.files.quantised import elements_of
from tightfit.weigh.files.safetensors_layout import BITS

Shapes = Mapping[str, Sequence[int]]
NUMBERS = {kind.name: number for number, kind in BLOCK_TYPES.items()}
TEXT, LIST, U32 = 8, 9, 4


def header_of(shapes: Shapes, dtype: str = "BF16", *, class_name: str | None = None) -> Header:
    """A header as a file with these tensors would have, names in the order of the alphabet."""
    return mixed_header({name: (dtype, shape) for name, shape in shapes.items()}, class_name)


def mixed_header(
    tensors: Mapping[str, tuple[str, Sequence[int]]], class_name: str | None = None
) -> Header:
    """Like `header_of`, with a type for each tensor."""
    listed = tuple(
        TensorHeader(
            name,
            tuple(shape),
            dtype,
            prod(shape) * BITS[dtype] // 8,
            elements_of(name, tuple(shape), dtype, names=tensors),
        )
        for name, (dtype, shape) in sorted(tensors.items())
    )
    return Header(Path("made-up.safetensors"), "safetensors", listed, class_name=class_name)


def entries_of(
    tensors: Mapping[str, tuple[str, Sequence[int]]],
) -> tuple[dict[str, dict[str, Any]], int]:
    """The entries of a header with these tensors one behind the other, and where they end."""
    entries: dict[str, dict[str, Any]] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + prod(shape) * BITS[dtype] // 8
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return entries, end


def write_safetensors(
    path: Path,
    tensors: Mapping[str, tuple[str, Sequence[int]]],
    *,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """A whole file with these tensors, which takes no room on the disk."""
    entries, end = entries_of(tensors)
    if metadata is not None:
        entries["__metadata__"] = dict(metadata)
    return write_entries(path, entries, end)


def write_entries(path: Path, entries: object, end: int) -> Path:
    """A file with any header, and `end` bytes behind it."""
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return path


class Gguf:
    """Puts a GGUF file together, and lets any number in it be wrong."""

    def __init__(self, *, version: int = 3, alignment: int = 32) -> None:
        self.version = version
        self.alignment = alignment
        self.offset = 0
        self._entries: list[bytes] = []
        self._tensors: list[bytes] = []

    def entry(self, key: str, kind: int, value: bytes) -> None:
        """Metadata: the code of a type, and the value's bytes."""
        self._entries.append(text(key) + struct.pack("<I", kind) + value)

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        kind: str | int,
        *,
        offset: int | None = None,
        stored: int | None = None,
    ) -> None:
        """A tensor behind the last one, or at `offset`; `shape` as PyTorch says it."""
        number = NUMBERS[kind] if isinstance(kind, str) else kind
        at = self.offset if offset is None else offset
        self._tensors.append(
            text(name)
            + struct.pack("<I", len(shape))
            + b"".join(struct.pack("<Q", axis) for axis in reversed(shape))
            + struct.pack("<IQ", number, at)
        )
        if stored is None:
            known = BLOCK_TYPES.get(number)
            stored = prod(shape) // known.values * known.size if known else 0
        end = max(self.offset, at + stored)
        self.offset = end + -end % self.alignment

    def head(self) -> bytes:
        """Everything before the tensors' own bytes, with the padding."""
        counts = struct.pack("<IQQ", self.version, len(self._tensors), len(self._entries))
        head = b"GGUF" + counts + b"".join((*self._entries, *self._tensors))
        return head + bytes(-len(head) % self.alignment)

    def write(self, path: Path, *, more: int = 0) -> Path:
        """The whole file, with `more` bytes too many (or too few)."""
        head = self.head()
        with path.open("wb") as file:
            file.write(head)
            file.truncate(len(head) + self.offset + more)
        return path


def text(value: str) -> bytes:
    """A text as GGUF writes it."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data
