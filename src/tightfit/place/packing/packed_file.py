"""A packed file, opened: its tensors as they lie there, or unpacked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch

from tightfit.errors import InputError
from tightfit.place.packing.codec import Recipe, decode
from tightfit.place.packing.mapped import mapped
from tightfit.weigh.files.headers import safetensors_layout
from tightfit.weigh.files.packed_file import read_packing
from tightfit.weigh.files.safetensors_layout import Layout

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
"""Of the types in files, those whose values PyTorch has one by one."""
_ALIGNMENT = 16
"""What `decode` needs; our own files have it, and those that others saved anew may not."""


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor of a packed file, as it lies there.

    Attributes:
        name: in the file, and in the one that was packed.
        dtype, shape: of the tensor that was packed, as files say them.
        stored: the packed bytes, uint8 with one axis, mapped: nothing is read until it is used.
            Where there is no recipe, the tensor's own bytes.
        recipe: what `decode` needs; None for a tensor that is not packed.
        sha256: of the tensor's own bytes, in hex.
        offset: in the file, of the first byte of `stored`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: torch.Tensor
    recipe: Recipe | None
    sha256: str
    offset: int

    def unpacked(self) -> torch.Tensor:
        """Its own bytes: uint8, one axis; mapped where it is not packed. Nothing is checked.

        Raises `InputError` or `ValueError` where the codec finds the bytes damaged.
        """
        if self.recipe is None:
            return self.stored
        out = torch.empty(self.recipe.values, dtype=torch.bfloat16)
        aligned = self.stored.data_ptr() % _ALIGNMENT == 0
        decode(self.stored if aligned else self.stored.clone(), self.recipe, out)
        return out.view(torch.uint8)


class PackedFile:
    """A file that `tightfit pack` wrote, by the names of its tensors.

    Attributes:
        path: of the file.
        layout: where its tensors lie.
        original: the header of the file that was packed.
    """

    def __init__(self, path: Path) -> None:
        """Read the header. Raises `InputError` for a file that is damaged, or is not packed."""
        self.path = path
        self.layout = safetensors_layout(path)
        packing = read_packing(self.layout)
        if packing is None:
            raise InputError(f"{path} is not packed: it is an ordinary safetensors file.")
        self.original: Layout = packing.original
        self._told = packing.tensors
        self._stored = {entry.name: entry for entry in self.layout.entries}
        self._entries = {entry.name: entry for entry in self.original.entries}

    def __iter__(self) -> Iterator[str]:
        """Names, in the order of the original's bytes."""
        return iter(self._entries)

    def __len__(self) -> int:
        """How many tensors there are."""
        return len(self._entries)

    @property
    def packed(self) -> int:
        """How many of them are packed."""
        return sum(each.recipe is not None for each in self._told.values())

    def sha256(self, name: str) -> str:
        """Of the bytes that the tensor `name` had in the original, in hex."""
        return self._told[name].sha256

    def stored(self, name: str) -> StoredTensor:
        """The tensor `name` as it lies in the file.

        Raises `KeyError` for a name that is not there, and `InputError` where how it is packed is
        damaged.
        """
        entry, held, told = self._entries[name], self._stored[name], self._told[name]
        begin = self.layout.start + held.begin
        end = self.layout.start + held.end
        recipe = None
        if told.recipe is not None:
            try:
                recipe = Recipe.from_text(told.recipe)
            except InputError as error:
                raise self.damaged(name, str(error).rstrip(".")) from None
            if recipe.values * 2 != entry.nbytes or recipe.bytes != held.nbytes:
                raise self.damaged(name, "how it is packed does not go with its size")
        return StoredTensor(
            name,
            entry.dtype,
            entry.shape,
            self._mapped(begin, end),
            recipe,
            told.sha256,
            begin,
        )

    def unpacked(self, name: str) -> torch.Tensor:
        """The bytes that the tensor `name` had in the original: uint8, one axis; checked.

        Raises `InputError` that names the tensor where they are not what was packed.
        """
        stored = self.stored(name)
        try:
            own = stored.unpacked()
        except (InputError, ValueError, IndexError, RuntimeError) as error:
            first = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
            raise self.damaged(name, first) from error
        if hash_of(own) != stored.sha256:
            raise self.damaged(name, "its bytes are not those that were packed")
        return own

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor `name` as it was before it was packed; checked.

        Raises as `unpacked` does, and `InputError` for types that PyTorch does not have.
        """
        entry = self._entries[name]
        if entry.dtype not in DTYPES:
            raise InputError(f"tensor `{name}` of {self.path} is {entry.dtype}: PyTorch has none.")
        own = self.unpacked(name)
        return values_of(own, DTYPES[entry.dtype]).reshape(entry.shape)

    def damaged(self, name: str, why: str) -> InputError:
        """The error for a tensor that is not what it should be."""
        return InputError(
            f"Cannot unpack {self.path}: tensor `{name}` is damaged: {why}. Pack the original anew."
        )

    def _mapped(self, begin: int, end: int) -> torch.Tensor:
        try:
            return mapped(self.path, begin, end)
        except (OSError, ValueError) as error:
            raise InputError(f"Cannot unpack {self.path}: {error}.") from None


def values_of(own: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The bytes `own` as values of `dtype`, without a copy where they lie on a multiple of it."""
    if own.data_ptr() % dtype.itemsize:
        own = own.clone()
    return own.view(dtype)


def hash_of(own: torch.Tensor) -> str:
    """SHA-256 of bytes (uint8, one axis), in hex."""
    return sha256(own.numpy().data).hexdigest()
