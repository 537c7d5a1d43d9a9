"""bf16 values to fewer bytes and back, bit for bit: the door to the format."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType

import torch

from tightfit.place.packing import plain
from tightfit.place.packing.encoding import encode
from tightfit.place.packing.recipe import Recipe

__all__ = ["Recipe", "decode", "decode_scratch", "encode", "prepared"]


def decode(stored: torch.Tensor, recipe: Recipe, out: torch.Tensor) -> None:
    """Write the values that `stored` holds to `out`: queued on the current stream, no host wait.

    Args:
        stored: flat uint8, at least `recipe.bytes`, on a multiple of 16 bytes.
        recipe: that came with it.
        out: flat bf16 of `recipe.values`, on the device of `stored`.

    Raises:
        ValueError: they do not belong together.
    """
    prepared(stored, recipe, out)()


def prepared(stored: torch.Tensor, recipe: Recipe, out: torch.Tensor) -> Callable[[], None]:
    """What does as `decode` does, each time it is called, with everything looked at before.

    For weights that are unpacked again and again: looking takes the host as long as a launch.
    """
    if stored.dtype != torch.uint8 or stored.ndim != 1 or stored.numel() < recipe.bytes:
        raise ValueError(
            f"packed bytes are {recipe.bytes} flat uint8 here, not"
            f" {tuple(stored.shape)} {stored.dtype}"
        )
    if out.dtype != torch.bfloat16 or out.shape != (recipe.values,) or not out.is_contiguous():
        raise ValueError(
            f"they unpack to {recipe.values} flat bfloat16, not {tuple(out.shape)} {out.dtype}"
        )
    if stored.device != out.device or not stored.is_contiguous():
        raise ValueError(f"packed bytes on {stored.device} cannot be unpacked to {out.device}")
    kernel = _kernel() if stored.device.type == "cuda" else None
    if kernel is None:
        return partial(plain.decode, stored, recipe, out)
    if stored.data_ptr() % 16:
        raise ValueError("packed bytes begin at a multiple of 16 bytes")
    launch: Callable[[], None] = kernel.launching(stored, recipe, out)
    device = stored.device

    def decoded() -> None:
        if torch.cuda.current_device() == device.index:
            launch()
            return
        with torch.cuda.device(device):
            launch()

    return decoded


def decode_scratch(recipe: Recipe, device_type: str) -> int:
    """Bytes that `decode` takes beside `stored` and `out` on such a device, at most."""
    if device_type == "cuda" and _kernel() is not None:
        return 0
    return plain.scratch(recipe, device_type)


@cache
def _kernel() -> ModuleType | None:
    """The one in Triton, where that is there; it comes with PyTorch for CUDA."""
    try:
        from tightfit.place.packing import kernel
    except ImportError:
        return None
    return kernel
