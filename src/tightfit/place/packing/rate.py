"""How fast a CUDA card unpacks weights: measured, briefly."""

from __future__ import annotations

from typing import Any

import torch

from tightfit.place.packing.codec import decode, encode
from tightfit.units import MIB

_BYTES = 64 * MIB
_SHARE_OF_FREE = 16
_RUNS = 5


def measure_unpacking(device: torch.device, *, free: int | None) -> float | None:
    """Bytes of weights, as they are used, that `device` unpacks in a second.

    None where it is no CUDA device, has no room to try, or cannot. The first time on a machine the
    kernel is compiled, which takes seconds; it is kept on the disk by Triton.
    """
    if device.type != "cuda":
        return None
    size = _BYTES if free is None else min(_BYTES, free // _SHARE_OF_FREE)
    if size < MIB:
        return None
    generator = torch.Generator(device).manual_seed(0)  # the user's own draws stay as they are
    try:
        values = torch.randn(size // 2, device=device, dtype=torch.bfloat16, generator=generator)
        found = encode(values)
        if found is None:
            return None
        stored, recipe = found
        decode(stored, recipe, values)
        event: Any = torch.cuda.Event
        with torch.cuda.device(device):
            started, ended = event(enable_timing=True), event(enable_timing=True)
            started.record()
            for _ in range(_RUNS):
                decode(stored, recipe, values)
            ended.record()
            ended.synchronize()
    except RuntimeError:
        return None
    return size * _RUNS * 1000 / max(float(started.elapsed_time(ended)), 1e-6)
