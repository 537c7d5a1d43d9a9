"""The two ways: from files to packed ones, and back. What a folder's walk need not know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.errors import InputError
from tightfit.place.packing.packed_file import PackedFile
from tightfit.place.packing.writing import (
    Counts,
    Tell,
    is_packed_of,
    is_unpacked_of,
    pack_file,
    unpack_file,
)
from tightfit.weigh.files.headers import safetensors_layout
from tightfit.weigh.files.packed_file import is_packed, packed_index, unpacked_index
from tightfit.weigh.files.safetensors_layout import Layout

_GGUF = b"GGUF"


@dataclass(frozen=True)
class Part:
    """A safetensors file that was written.

    Attributes:
        path: relative to the folder, or its name.
        counts: of its tensors and bytes.
        kept: it was there from an earlier run, and is right.
    """

    path: str
    counts: Counts
    kept: bool

    @property
    def packed(self) -> int:
        """Tensors that are packed in the packed form."""
        return self.counts.packed

    @property
    def raw(self) -> int:
        """Tensors that are the same in both."""
        return self.counts.raw

    @property
    def before_bytes(self) -> int:
        """Of the file that was read."""
        return self.counts.before_bytes

    @property
    def after_bytes(self) -> int:
        """Of the file that was written."""
        return self.counts.after_bytes

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "path": self.path,
            "before_bytes": self.before_bytes,
            "after_bytes": self.after_bytes,
            "tensors": {"packed": self.packed, "raw": self.raw},
            "kept": self.kept,
        }


class Opened(ABC):
    """A file of which the header was read.

    Attributes:
        work_bytes: of which is told while it is written and checked.
        result_bytes: of the file to come; None is unknown.
    """

    work_bytes: int
    result_bytes: int | None

    @abstractmethod
    def write(self, target: Path, tell: Tell) -> Counts:
        """Write the other form, and check what was written."""

    @abstractmethod
    def finished(self, path: Path, tell: Tell) -> Counts | None:
        """What is in the file at `path` if it is the other form of this one, else None."""


class Way(ABC):
    """A direction.

    Attributes:
        verb: ``pack`` or ``unpack``.
        doing: of the hidden folder in which a folder's files are made.
    """

    verb: str
    doing: str

    @abstractmethod
    def open(self, path: Path) -> Opened | None:
        """The safetensors file at `path`; None for one that goes along as it is.

        Raises `InputError` for a file that is damaged, or cannot be meant.
        """

    @abstractmethod
    def index(self, path: Path, text: bytes, total_bytes: int) -> bytes:
        """The index `text` in its other form; `total_bytes` is of all tensors as they are written.

        Raises `InputError` where it is damaged.
        """

    @abstractmethod
    def nothing(self, path: Path) -> str:
        """The sentence for a file or folder in which there is nothing to do."""


class _Original(Opened):
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.work_bytes = 2 * layout.data_bytes
        self.result_bytes = None

    def write(self, target: Path, tell: Tell) -> Counts:
        return pack_file(self._layout, target, tell)

    def finished(self, path: Path, tell: Tell) -> Counts | None:
        return is_packed_of(path, self._layout, tell)


class _Packed(Opened):
    def __init__(self, file: PackedFile) -> None:
        self._file = file
        self.work_bytes = 2 * file.original.data_bytes
        self.result_bytes = file.original.file_bytes

    def write(self, target: Path, tell: Tell) -> Counts:
        return unpack_file(self._file, target, tell)

    def finished(self, path: Path, tell: Tell) -> Counts | None:
        return is_unpacked_of(path, self._file, tell)


class _Pack(Way):
    verb = "pack"
    doing = "packing"

    def open(self, path: Path) -> Opened | None:
        _check_kind(path)
        layout = _layout(path, self.verb)
        if is_packed(layout.metadata):
            raise InputError(
                f"Cannot pack {path}: it is packed already. "
                "`tightfit pack --unpack` makes the original of it."
            )
        return _Original(layout)

    def index(self, path: Path, text: bytes, total_bytes: int) -> bytes:
        return packed_index(path, text, total_bytes)

    def nothing(self, path: Path) -> str:
        return f"Cannot pack {path}: it holds no .safetensors file."


class _Unpack(Way):
    verb = "unpack"
    doing = "unpacking"

    def open(self, path: Path) -> Opened | None:
        layout = _layout(path, self.verb)
        if not is_packed(layout.metadata):
            return None
        try:
            return _Packed(PackedFile(path))
        except InputError as error:
            raise _said(error, self.verb) from None

    def index(self, path: Path, text: bytes, total_bytes: int) -> bytes:
        del total_bytes
        before = unpacked_index(path, text)
        return text if before is None else before

    def nothing(self, path: Path) -> str:
        return f"Cannot unpack {path}: `tightfit pack` did not write it, so nothing is packed."


PACK: Way = _Pack()
UNPACK: Way = _Unpack()


def _layout(path: Path, verb: str) -> Layout:
    try:
        return safetensors_layout(path)
    except InputError as error:
        raise _said(error, verb) from None


def _said(error: InputError, verb: str) -> InputError:
    """The words of those who weigh files, for this work."""
    return InputError(str(error).replace("Cannot weigh", f"Cannot {verb}", 1))


def _check_kind(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(_GGUF)) == _GGUF:
            raise InputError(
                f"Cannot pack {path}: it is a GGUF file, whose weights are quantised already; "
                "bf16 weights of safetensors files are what packing makes smaller."
            )
