"""Which files the bytes of tensors are mapped from, and reading them there instead.

What a mapping shows and what its file has are the same as long as nobody has written to the
mapping's own pages; the kernel tells which those are (``/proc/self/pagemap``, described in the
kernel's documentation of its memory management). Only Linux tells so much: elsewhere no tensor is
found in a file.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tightfit.errors import InputError
from tightfit.weigh.shells import inner_of, is_wrapper, plain
from tightfit.weigh.tensors import Tally, weights

_MAPS = Path("/proc/self/maps")
_PAGES = Path("/proc/self/pagemap")
_PAGE = mmap.PAGESIZE
_PRESENT, _SWAPPED, _OF_A_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))


@dataclass(frozen=True)
class Mapped:
    """A part of our memory that shows a part of a file.

    Attributes:
        start, end: addresses: [start, end).
        offset: in the file, of `start`.
        inode: of the file.
        path: of the file when it was mapped.
    """

    start: int
    end: int
    offset: int
    inode: int
    path: str


class File:
    """A file that weights are read from. Whatever changes it makes every further read an error.

    Attributes:
        identity: equal for the same file with the same bytes, as far as can be told.
    """

    def __init__(self, path: str, inode: int, *, spares: bool = False) -> None:
        """Raises `OSError` where it cannot be opened, `InputError` for another of this name."""
        self.path = path
        self._spares = spares
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        found = os.fstat(self._handle)
        self._seen = (found.st_size, found.st_mtime_ns)
        self.identity = (path, inode, *self._seen)
        if found.st_ino != inode:
            self.close()
            raise InputError(f"`{path}` is not the file that the weights were loaded from.")

    def read(self, target: torch.Tensor, offset: int) -> None:
        """Fill `target`, bytes on the host, with what lies at `offset`.

        Where it spares the system's cache, what was read is not kept there. Raises `InputError`
        if the file cannot be read, or was written to or cut since it was opened.
        """
        left: Any = memoryview(target.numpy().data)
        at = offset
        while left:
            try:
                count = os.preadv(self._handle, [left], at)
            except OSError as error:
                raise InputError(
                    f"weights cannot be read from `{self.path}`: {error.strerror or error}."
                ) from None
            if not count:
                break
            left, at = left[count:], at + count
        now = os.fstat(self._handle)
        if left or (now.st_size, now.st_mtime_ns) != self._seen:
            raise InputError(
                f"`{self.path}` has changed since the weights were loaded from it: load them anew."
            )
        if self._spares:
            os.posix_fadvise(self._handle, offset, target.nbytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Harmless when repeated."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


@dataclass(frozen=True)
class Stretch:
    """Bytes of a file.

    Attributes:
        file: which one.
        offset: of the first.
    """

    file: File
    offset: int


class Files:
    """The files that this process has mapped, as they are when one is first looked for.

    Attributes:
        spares: what is read from files found from now on is not kept in the system's cache.
    """

    def __init__(self) -> None:
        self._mapped: list[Mapped] | None = None
        self._files: dict[tuple[str, int], File | None] = {}
        self.spares = False

    def is_mapped(self, tensor: torch.Tensor) -> bool:
        """Whether all of `tensor`, without gaps in memory, shows a file."""
        return self._find(tensor) is not None

    def find(self, tensor: torch.Tensor) -> Stretch | None:
        """Where the bytes of `tensor` lie in a file; None if they are not those of a file.

        Those of a file that is gone, or was written to in memory alone, are not.
        """
        found = self._find(tensor)
        if found is None or _is_changed(tensor.data_ptr(), tensor.nbytes):
            return None
        file = self._open(found.path, found.inode)
        if file is None:
            return None
        stretch = Stretch(file, found.offset + tensor.data_ptr() - found.start)
        return stretch if _shows(tensor, stretch) else None

    def close(self) -> None:
        """Close what was opened."""
        while self._files:
            _, file = self._files.popitem()
            if file is not None:
                file.close()

    def _find(self, tensor: torch.Tensor) -> Mapped | None:
        if self._mapped is None:
            self._mapped = sorted(_mapped(), key=_start)
        at = bisect_right(self._mapped, tensor.data_ptr(), key=_start) - 1
        if at < 0 or not tensor.nbytes:
            return None
        found = self._mapped[at]
        return found if tensor.data_ptr() + tensor.nbytes <= found.end else None

    def _open(self, path: str, inode: int) -> File | None:
        key = (path, inode)
        if key not in self._files:
            try:
                self._files[key] = File(path, inode, spares=self.spares)
            except (OSError, InputError):
                self._files[key] = None
        return self._files[key]


def own_bytes(module: nn.Module) -> int:
    """Of the weights of `module`, what lies in memory of ours: the rest is mapped from files."""
    files, tally = Files(), Tally()
    inner = [held.tensor for held in inner_of(weights(module)) if not is_wrapper(held.tensor)]
    own = (plain(tensor) for tensor in inner if tensor.device.type == "cpu")
    return sum(tally.add(tensor) for tensor in own if not files.is_mapped(tensor))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor without gaps, as bytes in the order they lie."""
    flat: torch.Tensor = torch.empty(0, dtype=torch.uint8).set_(
        tensor.untyped_storage(),
        tensor.storage_offset() * tensor.element_size(),
        (tensor.nbytes,),
        (1,),
    )
    return flat


def _start(mapped: Mapped) -> int:
    return mapped.start


def _mapped() -> Iterator[Mapped]:
    """Each line: first and last address, rights, offset, device, inode, path (proc(5))."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/") and parts[4] != "0":
            start, _, end = parts[0].partition("-")
            path = parts[5].replace("\\012", "\n")
            yield Mapped(int(start, 16), int(end, 16), int(parts[2], 16), int(parts[4]), path)


def _is_changed(address: int, size: int) -> bool:
    """Whether pages are ours alone, since somebody wrote to them, or it cannot be told."""
    first, last = address // _PAGE, (address + size - 1) // _PAGE
    try:
        with _PAGES.open("rb", buffering=0) as pages:
            told = os.pread(pages.fileno(), 8 * (last - first + 1), 8 * first)
    except OSError:
        return True
    if len(told) != 8 * (last - first + 1):
        return True
    entries = np.frombuffer(told, dtype=np.uint64)
    present = (entries & _PRESENT) != 0
    ours = (present & ((entries & _OF_A_FILE) == 0)) | ((entries & _SWAPPED) != 0)
    return bool(ours.any())


def _shows(tensor: torch.Tensor, stretch: Stretch) -> bool:
    """Whether the ends of `tensor` are what is in the file: a last look at the right place."""
    memory = bytes_of(tensor)
    size = min(_PAGE, memory.nbytes)
    read = torch.empty(size, dtype=torch.uint8)
    for start in (0, memory.nbytes - size):
        try:
            stretch.file.read(read, stretch.offset + start)
        except InputError:
            return False
        if not torch.equal(read, memory[start : start + size]):
            return False
    return True
