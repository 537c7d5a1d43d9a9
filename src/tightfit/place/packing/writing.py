"""One safetensors file packed, and one unpacked; and whether one was made of the other.

Tensors pass one at a time: at most one and its packed copy are in memory. Packed ones lie first,
since their bytes have to be aligned, and then the others, each in the order of the original. What
is written is read again and unpacked before it is called done.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from tightfit.errors import InputError, JobFailed
from tightfit.place.packing.codec import encode
from tightfit.place.packing.mapped import mapped
from tightfit.place.packing.packed_file import PackedFile, hash_of, values_of
from tightfit.place.packing.recipe import ALIGNMENT
from tightfit.units import KIB
from tightfit.weigh.files.headers import safetensors_layout
from tightfit.weigh.files.packed_file import PackedTensor, metadata_of
from tightfit.weigh.files.safetensors_layout import LENGTH, LONGEST, Entry, Layout

Tell = Callable[[int], None]
"""Is told of bytes of the unpacked file that were dealt with since it was told last."""

SMALLEST = 16 * KIB
"""Tensors of fewer bytes stay as they are: what tells of a packed one takes a hundred."""
_RECIPE_ROOM = 256
"""Bytes of the header that a recipe may take; a tensor with a longer one stays as it is."""
_ENTRY_ROOM = 24
"""How much longer the entry of a packed tensor may be than that of the original: ``[digits]``."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of a file.

    Attributes:
        packed, raw: how many of its tensors are packed, and how many are as they were.
        before_bytes, after_bytes: of the file read and the file written.
    """

    packed: int
    raw: int
    before_bytes: int
    after_bytes: int


def pack_file(original: Layout, target: Path, tell: Tell) -> Counts:
    """Write the file of `original` packed to `target`, and check what was written.

    Each byte of the original is told of twice. Raises `OSError` where `target` cannot be written,
    `InputError` where the original cannot be read, and `JobFailed` where what is read back is not
    what was written.
    """
    start = _room_for_header(original)
    made = _Made(original)
    with target.open("wb") as out, ThreadPoolExecutor(1) as beside:
        out.seek(start)
        rest: list[Entry] = []
        for entry in original.entries:
            if entry.dtype != "BF16" or entry.nbytes < SMALLEST:
                rest.append(entry)
                continue
            own = own_bytes(original, entry)
            digest = beside.submit(hash_of, own)
            packed = _smaller(own)
            if packed is None:
                rest.append(entry)
                continue
            stored, recipe = packed
            _write(out, stored)
            made.add(entry, digest.result(), stored.nbytes, recipe)
            tell(entry.nbytes)
        for entry in rest:
            own = own_bytes(original, entry)
            _write(out, own)
            made.add(entry, hash_of(own), entry.nbytes, None)
            tell(entry.nbytes)
        out.seek(0)
        out.write((start - LENGTH).to_bytes(LENGTH, "little"))
        out.write(made.header().ljust(start - LENGTH, b" "))
        out.truncate(start + made.reached)
    found = is_packed_of(target, original, tell)
    return _checked(found, target)


def _checked(found: Counts | None, target: Path) -> Counts:
    if found is None:
        raise JobFailed(
            f"What was written to {target} is not what was read back: "
            "the disk or the memory is at fault."
        )
    return found


def is_packed_of(path: Path, original: Layout, tell: Tell) -> Counts | None:
    """Unpack all of the file at `path`; None where it is not that of `original`, byte for byte."""
    try:
        file = PackedFile(path)
        if file.original.text != original.text:
            return None
        for entry in original.entries:
            if not torch.equal(file.unpacked(entry.name), own_bytes(original, entry)):
                return None
            tell(entry.nbytes)
    except InputError:
        return None
    return Counts(file.packed, len(file) - file.packed, original.file_bytes, file.layout.file_bytes)


def unpack_file(packed: PackedFile, target: Path, tell: Tell) -> Counts:
    """Write the file that `packed` was made of to `target`, and check what was written.

    Each byte of the original is told of twice. Raises as `pack_file` does, and `InputError` that
    names the tensor where the packed file is damaged.
    """
    original = packed.original
    with target.open("wb") as out:
        out.write(len(original.text).to_bytes(LENGTH, "little"))
        out.write(original.text)
        for entry in original.entries:
            _write(out, packed.unpacked(entry.name))
            tell(entry.nbytes)
    found = is_unpacked_of(target, packed, tell)
    return _checked(found, target)


def is_unpacked_of(path: Path, packed: PackedFile, tell: Tell) -> Counts | None:
    """Hash all of the file at `path`; None where it is not the one that `packed` was made of."""
    try:
        layout = safetensors_layout(path)
        if layout.text != packed.original.text:
            return None
        for entry in layout.entries:
            if hash_of(own_bytes(layout, entry)) != packed.sha256(entry.name):
                return None
            tell(entry.nbytes)
    except InputError:
        return None
    return Counts(
        packed.packed, len(packed) - packed.packed, packed.layout.file_bytes, layout.file_bytes
    )


def own_bytes(layout: Layout, entry: Entry) -> torch.Tensor:
    """The bytes of one tensor in its file, mapped: uint8, one axis.

    Raises `InputError` where the file cannot be read.
    """
    try:
        return mapped(layout.path, layout.start + entry.begin, layout.start + entry.end)
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot read {layout.path}: {error}.") from None


class _Made:
    """What a packed file holds so far.

    Attributes:
        reached: bytes of tensors.
    """

    def __init__(self, original: Layout) -> None:
        self.reached = 0
        self._original = original
        self._entries: dict[str, object] = {}
        self._told: dict[str, PackedTensor] = {}

    def add(self, entry: Entry, sha256: str, size: int, recipe: str | None) -> None:
        self._told[entry.name] = PackedTensor(entry.name, sha256, recipe)
        self._entries[entry.name] = {
            "dtype": entry.dtype if recipe is None else "U8",
            "shape": entry.shape if recipe is None else (size,),
            "data_offsets": (self.reached, self.reached + size),
        }
        self.reached += size

    def header(self) -> bytes:
        content = {"__metadata__": metadata_of(self._original, self._told), **self._entries}
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def _smaller(own: torch.Tensor) -> tuple[torch.Tensor, str] | None:
    """The bytes to store of a bf16 tensor, and their recipe; None where it stays as it is."""
    found = encode(values_of(own, torch.bfloat16))
    if found is None:
        return None
    stored, recipe = found
    text = recipe.to_text()
    if stored.nbytes >= own.nbytes or len(_within_json(text)) > _RECIPE_ROOM:
        return None
    return stored, text


def _room_for_header(original: Layout) -> int:
    """Where tensors begin: behind the longest header that there may be.

    Raises `InputError` where readers would refuse so long a header.
    """
    made = _Made(original)
    for entry in original.entries:
        made.add(entry, "f" * 64, entry.nbytes, None)
    longest = len(made.header()) + (_RECIPE_ROOM + _ENTRY_ROOM) * len(original.entries)
    if longest > LONGEST:
        raise InputError(
            f"Cannot pack {original.path}: its header of {len(original.text):,} bytes would grow "
            f"to {longest:,}, and {LONGEST:,} are the limit."
        )
    end = LENGTH + longest
    return end + -end % ALIGNMENT


def _within_json(text: str) -> str:
    """`text` as it stands in a JSON text that stands in the header."""
    return json.dumps(json.dumps(text))


def _write(out: BinaryIO, own: torch.Tensor) -> None:
    if own.nbytes:
        out.write(own.numpy().data)
