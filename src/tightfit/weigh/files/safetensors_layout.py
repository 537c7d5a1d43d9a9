"""Where the tensors of a safetensors file lie: 8 bytes of length, JSON, then the tensors, unread.

Format: the description that the safetensors library publishes. As there, tensors lie one behind
the other, from the first byte after the header to the last of the file: holes, overlaps and
trailing bytes are refused. So tensors that are tied cannot both be in a file; a second name of one
is absent, or is a copy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tightfit.units import format_bytes
from tightfit.weigh.files.tensor_header import unreadable

BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Bits of one value, by the type's name in the file."""

LENGTH = 8
"""Bytes in front of the JSON, which say how long it is: little-endian."""
LONGEST = 100_000_000
"""The library's own limit on a header, in bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in the file.

    Attributes:
        name, dtype, shape: as the file says them.
        begin, end: bytes [begin, end), counted from the end of the header.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """What it takes in the file."""
        return self.end - self.begin


@dataclass(frozen=True)
class Layout:
    """What the header of a file says.

    Attributes:
        path: of the file.
        text: the JSON as it stands there, padding included.
        entries: in the order of their bytes, which leave no gap.
        metadata: texts beside the tensors.
    """

    path: Path
    text: bytes
    entries: tuple[Entry, ...]
    metadata: Mapping[str, str]

    @property
    def start(self) -> int:
        """Where the header ends and the bytes of tensors begin."""
        return LENGTH + len(self.text)

    @property
    def data_bytes(self) -> int:
        """Of all tensors."""
        return self.entries[-1].end if self.entries else 0

    @property
    def file_bytes(self) -> int:
        """Of the whole file."""
        return self.start + self.data_bytes


def read_layout(path: Path) -> Layout:
    """The header of the file at `path`; nothing behind it is read.

    Raises `InputError` with the sizes that disagree where the file is cut, padded or damaged.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(LENGTH), "little")
            _check_length(path, length, size)
            text = file.read(length)
    except OSError as error:
        raise unreadable(path, f"{error.strerror or error}") from None
    layout = parse_layout(path, text)
    _check_size(path, layout.file_bytes, size)
    return layout


def parse_layout(path: Path, text: bytes) -> Layout:
    """What the JSON of a header says; `path` is for the errors, and is not looked at.

    Raises `InputError` where it is damaged, or its tensors overlap or leave a hole.
    """
    content = _parse(path, text)
    metadata = content.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise unreadable(path, "its `__metadata__` is not a map of texts")
    placed = sorted((*_extent(path, name, entry), name) for name, entry in content.items())
    _check_extents(path, placed, start=LENGTH + len(text))
    entries = tuple(
        Entry(name, content[name]["dtype"], tuple(content[name]["shape"]), begin, end)
        for begin, end, name in placed
    )
    return Layout(path, text, entries, metadata)


def _check_length(path: Path, length: int, size: int) -> None:
    if size < LENGTH:
        raise unreadable(path, f"it has {size} bytes, and a safetensors file at least {LENGTH}")
    if length > LONGEST or LENGTH + length > size:
        raise unreadable(
            path,
            f"its header should end at byte {LENGTH + length:,}, but the file has {size:,} bytes: "
            "it is cut off, or no safetensors file",
        )


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"its header of {len(text):,} bytes is damaged ({error})") from None
    if not isinstance(content, dict):
        raise unreadable(path, f"its header of {len(text):,} bytes lists no tensors")
    return content


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name stands in it twice")
    return content


def _extent(path: Path, name: str, entry: Any) -> tuple[int, int]:
    """First and one-past-last byte of a tensor, counted from the end of the header."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        sizes = [*shape, begin, end]
    except (TypeError, KeyError, ValueError):
        raise unreadable(path, f"tensor `{name}` lacks a type, a shape or two offsets") from None
    if any(type(number) is not int or number < 0 for number in sizes):
        raise unreadable(path, f"tensor `{name}` has sizes that are no whole numbers from 0 up")
    bits = BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise unreadable(path, f"tensor `{name}` is of the unknown type `{dtype}`")
    expected, odd = divmod(prod(shape) * bits, 8)
    if odd or end - begin != expected:
        raise unreadable(
            path,
            f"tensor `{name}` takes {end - begin:,} bytes, but {dtype} of shape {shape} needs "
            f"{prod(shape) * bits / 8:,.10g}",
        )
    return begin, end


def _check_extents(path: Path, placed: list[tuple[int, int, str]], *, start: int) -> None:
    reached = 0
    for begin, end, name in placed:
        if begin != reached:
            fault = "overlaps the one before it" if begin < reached else "lies behind a hole"
            raise unreadable(
                path,
                f"tensor `{name}` {fault}: it begins at byte {start + begin:,} instead of "
                f"{start + reached:,}",
            )
        reached = end


def _check_size(path: Path, expected: int, size: int) -> None:
    missing = expected - size
    if missing > 0:
        raise unreadable(
            path,
            f"it is cut off: its tensors end at byte {expected:,}, but the file has "
            f"{size:,} bytes; {format_bytes(missing)} are missing",
        )
    if missing < 0:
        raise unreadable(
            path,
            f"it should end at byte {expected:,}, but has {-missing:,} bytes more "
            f"({size:,} in all)",
        )
