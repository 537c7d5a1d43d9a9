"""Pixel values on their way out: checked, rounded, 8 bits each."""

from __future__ import annotations

from pathlib import Path

import torch

from tightfit.errors import JobFailed


def to_bytes(pixels: torch.Tensor, *, goal: Path, channels: tuple[int, ...] = (3,)) -> torch.Tensor:
    """Pixels [N,C,H,W], float in 0..1 or uint8, as uint8 [N,C,H,W] on the host.

    Floats are rounded to the nearest step and clamped at both ends. Raises `JobFailed`, with the
    file `goal` that will not be written, on NaN or infinite values and on another shape.
    """
    if pixels.ndim != 4 or pixels.shape[1] not in channels:
        legal = " or ".join(str(count) for count in channels)
        raise JobFailed(
            f"Cannot write {goal}: pixels of shape {list(pixels.shape)} came, "
            f"[N,C,H,W] with {legal} channels was expected."
        )
    pixels = pixels.detach().to("cpu")
    if pixels.dtype == torch.uint8:
        return pixels
    if not pixels.is_floating_point():
        raise JobFailed(f"Cannot write {goal}: pixels are {pixels.dtype}, not float or uint8.")
    check_finite(pixels, goal=goal)
    return (pixels.float() * 255).round_().clamp_(0, 255).to(torch.uint8)


def check_finite(values: torch.Tensor, *, goal: Path) -> None:
    """Raise `JobFailed` where `values`, meant for `goal`, hold NaN or infinity."""
    bad = count_bad(values)
    if bad:
        raise JobFailed(
            f"Nothing was written to {goal}: {bad} of {values.numel()} values are NaN or infinite. "
            "Try --dtype float32 or bfloat16."
        )


def count_bad(values: torch.Tensor) -> int:
    """How many of `values` are NaN or infinite."""
    # float8 has no isfinite of its own; every float8 value is exact in float32.
    checked = values.float() if values.element_size() == 1 else values
    return int((~torch.isfinite(checked)).sum())
