"""CUDA's runtime library, as PyTorch has loaded it."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

_MAPS = Path("/proc/self/maps")
_LIBRARY = "libcudart"


@cache
def runtime_library() -> ctypes.CDLL | None:
    """The one copy that is loaded: each copy keeps its own last error. None where there is none."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.init()  # type: ignore[no-untyped-call]
    for line in _MAPS.read_text(encoding="utf-8").splitlines():
        path = line.rpartition(" ")[2]
        if _LIBRARY in path.rpartition("/")[2]:
            return ctypes.CDLL(path)
    return None
