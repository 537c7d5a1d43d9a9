"""Where the generators of random numbers are, and back there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tightfit.errors import InputError


def drawn_so_far(generators: Sequence[torch.Generator], device: torch.device) -> dict[str, Any]:
    """The states of `generators`, of PyTorch's own for the host and `device`, NumPy's, Python's."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "given": [each.get_state() for each in generators],
        "host": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [name, np.asarray(keys, dtype=np.int64), *rest],
        "python": random.getstate(),
    }


def draw_on(
    states: dict[str, Any], generators: Sequence[torch.Generator], device: torch.device
) -> None:
    """Put all of them back to `states`. Raises `InputError` where those are of others."""
    given = states["given"]
    if len(given) != len(generators):
        raise InputError(
            f"Cannot resume: {len(given)} generators were in use, and {len(generators)} are now; "
            "start from the beginning, or give as many."
        )
    for each, state in zip(generators, given, strict=True):
        each.set_state(state)
    torch.set_rng_state(states["host"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.astype(np.uint32), *rest))
    random.setstate(states["python"])
