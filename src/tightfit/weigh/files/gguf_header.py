"""The header of a GGUF file: metadata and where each tensor lies; the tensors stay unread.

Format: ggml's ``docs/gguf.md``, versions 2 and 3, little-endian. As in ggml's reader, tensors lie
one behind the other in the order of the list, each padded to the file's alignment; only tensors
that are the very same bytes may share a place, and are counted once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from tightfit.units import format_bytes
from tightfit.weigh.files.ggml_types import BLOCK_TYPES, BlockType
from tightfit.weigh.files.gguf_reader import Damaged, Reader
from tightfit.weigh.files.tensor_header import WHOLE_NUMBERS, Header, TensorHeader, unreadable

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_MOST_AXES = 8
_LEAST_ENTRY = 13
"""Bytes of the shortest metadata entry; that of a tensor is longer."""
_ORIGINAL_SHAPE = "comfy.gguf.orig_shape."
"""Where converters of diffusion models keep the shape of a tensor that they flattened."""


@dataclass(frozen=True)
class _Placed:
    name: str
    shape: tuple[int, ...]
    kind: BlockType
    offset: int
    stored: int


@dataclass(frozen=True)
class _Listed:
    placed: list[_Placed]
    metadata: dict[str, str]
    ties: dict[str, str]
    start: int


def read_gguf(path: Path) -> Header:
    """The header of the file at `path`; nothing behind it is read.

    Raises `InputError` where the file is cut, padded or damaged, and names block types that are not
    known before it looks at anything else.
    """
    listed = _opened(path)
    tensors = tuple(_tensor(one) for one in listed.placed if one.name not in listed.ties)
    return Header(path, "gguf", tensors, listed.metadata, (path,), ties=listed.ties)


def gguf_places(path: Path) -> tuple[int, dict[str, tuple[int, int]]]:
    """Where the head of the file at `path` ends, and bytes [begin, end) of each tensor in it.

    Raises as `read_gguf` does.
    """
    listed = _opened(path)
    places = {
        one.name: (listed.start + one.offset, listed.start + one.offset + one.stored)
        for one in listed.placed
    }
    return listed.start, places


def _opened(path: Path) -> _Listed:
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            return _read(Reader(file, size))
    except OSError as error:
        raise unreadable(path, f"{error.strerror or error}") from None
    except Damaged as error:
        raise unreadable(path, str(error)) from None


def _read(reader: Reader) -> _Listed:
    if reader.take(4) != MAGIC:
        raise Damaged("it does not begin with `GGUF`")
    version = reader.number(4)
    if version not in _VERSIONS:
        raise Damaged(f"it is GGUF of version {version}; versions 2 and 3 (little-endian) are read")
    count, entries = reader.number(8), reader.number(8)
    if (count + entries) * _LEAST_ENTRY > reader.size:
        raise Damaged(
            f"it should have {count:,} tensors and {entries:,} metadata entries, but has only "
            f"{reader.size:,} bytes"
        )
    metadata = dict(_metadata(reader, entries))
    listed = [_entry(reader) for _ in range(count)]
    _check_types(listed)
    placed = [
        _placed(name, _original(metadata, name, shape), shape, kind, offset)
        for name, shape, kind, offset in listed
    ]
    alignment = _alignment(metadata)
    start = _padded(reader.position, alignment)
    ties = _check(placed, alignment, start=start, size=reader.size)
    return _Listed(placed, metadata, ties, start)


def _metadata(reader: Reader, entries: int) -> Iterator[tuple[str, str]]:
    for _ in range(entries):
        key = reader.text()
        value = reader.value()
        if value is not None:
            yield key, value


def _entry(reader: Reader) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape with the slowest axis first, number of the block type, offset."""
    name = reader.text()
    axes = reader.number(4)
    if axes > _MOST_AXES:
        raise Damaged(f"tensor `{name}` has {axes:,} axes")
    shape = tuple(reader.number(8) for _ in range(axes))[::-1]
    return name, shape, reader.number(4), reader.number(8)


def _check_types(listed: list[tuple[str, tuple[int, ...], int, int]]) -> None:
    unknown: dict[int, str] = {}
    for name, _, kind, _ in listed:
        if kind not in BLOCK_TYPES:
            unknown.setdefault(kind, name)
    if unknown:
        named = ", ".join(f"{kind} (of tensor `{name}`)" for kind, name in unknown.items())
        raise Damaged(f"it holds block types that are not known here: {named}")


def _original(metadata: dict[str, str], name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    axes = metadata.get(_ORIGINAL_SHAPE + name, "").split(",")
    original = tuple(int(axis) for axis in axes) if all(map(str.isdecimal, axes)) else shape
    return original if prod(original) == prod(shape) else shape


def _placed(
    name: str, original: tuple[int, ...], shape: tuple[int, ...], number: int, offset: int
) -> _Placed:
    kind = BLOCK_TYPES[number]
    if shape and shape[-1] % kind.values:
        raise Damaged(
            f"tensor `{name}` has rows of {shape[-1]:,} values, which are no whole blocks of "
            f"{kind.values} ({kind.name})"
        )
    return _Placed(name, original, kind, offset, prod(shape) // kind.values * kind.size)


def _alignment(metadata: dict[str, str]) -> int:
    text = metadata.get("general.alignment", str(_ALIGNMENT))
    alignment = int(text) if text.isdecimal() else 0
    if alignment < 1 or alignment & (alignment - 1):
        raise Damaged(f"its alignment is `{text}`, which is no power of two")
    return alignment


def _check(placed: list[_Placed], alignment: int, *, start: int, size: int) -> dict[str, str]:
    """Which names are further names of a tensor listed before. Raises `Damaged`."""
    seen: dict[str, None] = {}
    first: dict[int, _Placed] = {}
    ties: dict[str, str] = {}
    expected = end = 0
    for one in placed:
        if one.name in seen:
            raise Damaged(f"tensor `{one.name}` is listed twice")
        seen[one.name] = None
        twin = first.get(one.offset)
        if twin is not None and one.stored and (one.kind, one.stored) == (twin.kind, twin.stored):
            ties[one.name] = twin.name
            continue
        if one.offset != expected:
            fault = "overlaps the one before it" if one.offset < expected else "lies behind a hole"
            raise Damaged(
                f"tensor `{one.name}` {fault}: it begins at byte {start + one.offset:,} instead of "
                f"{start + expected:,}"
            )
        first[one.offset] = one
        end = one.offset + one.stored
        expected = _padded(end, alignment)
    _check_size(start + end, start + expected, size)
    return ties


def _check_size(end: int, padded: int, size: int) -> None:
    if size < end:
        raise Damaged(
            f"it is cut off: its tensors end at byte {end:,}, but the file has {size:,} bytes; "
            f"{format_bytes(end - size)} are missing"
        )
    if size > padded:
        raise Damaged(
            f"it should end at byte {padded:,}, but has {size - padded:,} bytes more "
            f"({size:,} in all)"
        )


def _tensor(one: _Placed) -> TensorHeader:
    elements = 0 if one.kind.name in WHOLE_NUMBERS else prod(one.shape)
    return TensorHeader(one.name, one.shape, one.kind.name, one.stored, elements)


def _padded(position: int, alignment: int) -> int:
    return position + -position % alignment
