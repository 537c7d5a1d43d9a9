"""Bytes of a file as a tensor, without reading them: pages come when they are used."""

from __future__ import annotations

import mmap
from pathlib import Path

import torch


def mapped(path: Path, begin: int, end: int) -> torch.Tensor:
    """Bytes [begin, end) of the file at `path`: uint8, one axis.

    Each call maps its own part and no more, which goes when nothing refers to the tensor: a file
    may be larger than the memory that a mapping of the whole could be charged to. Writing to the
    tensor changes no file. Raises `OSError` where the file cannot be opened, and `ValueError` where
    it is shorter than `end`.
    """
    if begin == end:
        return torch.empty(0, dtype=torch.uint8)
    first = begin - begin % mmap.ALLOCATIONGRANULARITY
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), end - first, access=mmap.ACCESS_COPY, offset=first)
    return torch.frombuffer(view, dtype=torch.uint8, count=end - begin, offset=begin - first)
