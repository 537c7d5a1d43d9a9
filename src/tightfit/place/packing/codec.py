"""bf16 values to fewer bytes and back, bit for bit: the door to the format."""

from __future__ import annotations

import torch

from tightfit.place.packing import plain
from tightfit.place.packing.encoding import encode
from tightfit.place.packing.recipe import Recipe

__all__ = ["Recipe", "decode", "decode_scratch", "encode"]


def decode(stored: torch.Tensor, recipe: Recipe, out: torch.Tensor) -> None:
    """Write the values that `stored` holds to `out`: queued on the current stream, no host wait.

    Args:
        stored: flat uint8, at least `recipe.bytes`, aligned to 16 bytes.
        recipe: that came with it.
        out: flat bf16 of `recipe.values`, on the device of `stored`.

    Raises:
        ValueError: they do not belong together.
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
    plain.decode(stored, recipe, out)


def decode_scratch(recipe: Recipe, device_type: str) -> int:
    """Bytes that `decode` takes beside `stored` and `out` on such a device, at most."""
    return plain.scratch(recipe, device_type)
