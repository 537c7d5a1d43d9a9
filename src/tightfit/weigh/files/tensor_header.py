"""What a file says of its tensors: values alone, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tightfit.errors import InputError, UsageError

COMPUTE_DTYPES = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}
"""What models compute in: the name in files, and bytes of one value."""

WHOLE_NUMBERS = frozenset({"BOOL", "I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64"})
"""Types that hold weights only where they are packed."""


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """A tensor in a file, unread.

    Attributes:
        name: as in the file, or without the prefix of the part it belongs to.
        shape: as PyTorch would say it (GGUF counts axes the other way round); of the packed bytes
            where safetensors holds a packed type.
        dtype: as the file says it: ``BF16``, ``F8_E4M3``, ``I8``, ``U8``, ``Q4_K`` …
        stored_bytes: what it takes in the file, and wherever it is kept as it is.
        elements: values of the model in it, unpacked; 0 where it holds none, as scales and code
            books of a packed tensor, indices and tokenizers do.
        packed: whether `tightfit pack` made it smaller: `dtype` and `shape` are what it unpacks to.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored_bytes: int
    elements: int
    packed: bool = False

    def converted(self, compute_dtype: str) -> int:
        """Bytes of its copy in `compute_dtype`, or unpacked; 0 where none is made.

        Raises `UsageError` for a dtype that models are not computed in.
        """
        known = COMPUTE_DTYPES.get(compute_dtype)
        if known is None:
            raise UsageError(
                f"dtype `{compute_dtype}` is unknown: use {', '.join(COMPUTE_DTYPES)}."
            )
        same, itemsize = known
        return 0 if self.dtype == same and not self.packed else self.elements * itemsize


@dataclass(frozen=True)
class Header:
    """What a file, or a set of shards, says of the tensors in it.

    Attributes:
        path: what was asked for: a file, an index, or a folder.
        format: ``safetensors`` or ``gguf``.
        tensors: in the order of the file, each stored tensor once.
        metadata: free text beside the tensors; longer lists of GGUF are left out.
        files: the files that hold the tensors.
        class_name: by the folder's ``config.json``; None where there is none.
        ties: further names of a tensor, to the name it is listed under.
    """

    path: Path
    format: str
    tensors: tuple[TensorHeader, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    class_name: str | None = None
    ties: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> Mapping[str, TensorHeader]:
        """Tensors by the name they are listed under."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def weight_bytes(self) -> int:
        """All tensors as they are stored, ties once."""
        return sum(tensor.stored_bytes for tensor in self.tensors)

    @cached_property
    def elements(self) -> int:
        """Values of the model, unpacked, ties once."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def dtype(self) -> str | None:
        """The type that most of the bytes are in; None for a file without tensors."""
        shares: dict[str, int] = {}
        for tensor in self.tensors:
            shares[tensor.dtype] = shares.get(tensor.dtype, 0) + tensor.stored_bytes
        return max(shares, key=shares.__getitem__, default=None)


def unreadable(path: Path, reason: str) -> InputError:
    """The error for a file that is not what it should be, in the words of this folder."""
    return InputError(f"Cannot weigh {path}: {reason}.")
