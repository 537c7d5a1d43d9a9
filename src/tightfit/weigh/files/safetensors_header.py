"""The header of one safetensors file, in the words that all files share.

Of a file that `tightfit pack` wrote, the tensors are those that were packed: their types, shapes
and metadata, with the bytes that they take now.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightfit.weigh.files.packed_file import read_packing
from tightfit.weigh.files.quantised import elements_of
from tightfit.weigh.files.safetensors_layout import Entry, Layout, read_layout
from tightfit.weigh.files.tensor_header import Header, TensorHeader


def read_safetensors(path: Path) -> Header:
    """The header of the file at `path`; nothing behind it is read.

    Raises `InputError` with the sizes that disagree where the file is cut, padded or damaged.
    """
    layout = read_layout(path)
    packing = read_packing(layout)
    if packing is None:
        tensors = _tensors(layout)
        return Header(path, "safetensors", tensors, layout.metadata, (path,))
    stored = {entry.name: entry.nbytes for entry in layout.entries}
    packed = {each.name for each in packing.tensors.values() if each.recipe is not None}
    tensors = _tensors(packing.original, stored=stored, packed=packed)
    return Header(path, "safetensors", tensors, packing.original.metadata, (path,))


def _tensors(
    layout: Layout, *, stored: Mapping[str, int] | None = None, packed: set[str] | None = None
) -> tuple[TensorHeader, ...]:
    names = {entry.name: entry for entry in layout.entries}
    return tuple(
        _tensor(
            entry,
            entry.nbytes if stored is None else stored[entry.name],
            packed=packed is not None and entry.name in packed,
            names=names,
        )
        for entry in layout.entries
    )


def _tensor(entry: Entry, stored: int, *, packed: bool, names: Mapping[str, Any]) -> TensorHeader:
    elements = elements_of(entry.name, entry.shape, entry.dtype, names=names)
    return TensorHeader(entry.name, entry.shape, entry.dtype, stored, elements, packed)
