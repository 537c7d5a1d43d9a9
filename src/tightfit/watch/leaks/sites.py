"""Where memory was asked for: the line of a program, as far as Python traces it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from tightfit.watch.leaks.holders import attributes_of

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


def site_of(objects: Iterable[Any]) -> str | None:
    """Where it was made, if memory is being traced: the newest line outside libraries.

    Python 3.11 has no trace of objects with attributes of their own, so of tensors; a virtual
    card's charge was made along with one.
    """
    for each in objects:
        for made in (each, attributes_of(each).get("charge")):
            trace = None if made is None else tracemalloc.get_object_traceback(made)
            if trace is not None:
                return innermost(trace)
    return None


def innermost(trace: tracemalloc.Traceback) -> str | None:
    """``file:line``, of the newest frame that is neither PyTorch's nor ours."""
    frames = list(trace)[::-1]
    chosen = next((each for each in frames if not _is_library(each.filename)), None)
    return None if chosen is None else f"{chosen.filename}:{chosen.lineno}"


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or file.startswith("<")
