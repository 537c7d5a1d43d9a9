"""Pixel values on their way out: checked, rounded, 8 or 16 bits each."""

from __future__ import annotations

from pathlib import Path

import torch

from tightfit.errors import JobFailed

DEPTHS = (8, 16)
_TOPS = {torch.uint8: 255, torch.uint16: 65535}


def to_bytes(pixels: torch.Tensor, *, goal: Path, channels: tuple[int, ...] = (3,)) -> torch.Tensor:
    """`to_samples` of 8 bits."""
    return to_samples(pixels, goal=goal, channels=channels)


def to_samples(
    pixels: torch.Tensor, *, goal: Path, channels: tuple[int, ...] = (3,), bits: int = 8
) -> torch.Tensor:
    """Pixels [N,C,H,W], float in 0..1, uint8 or uint16, as uint8 or uint16 [N,C,H,W] on the host.

    Floats are rounded to the nearest step and clamped at both ends. Raises `JobFailed`, with the
    file `goal` that will not be written, on NaN or infinite values and on another shape.
    """
    if pixels.ndim != 4 or pixels.shape[1] not in channels:
        legal = " or ".join(str(count) for count in channels)
        raise JobFailed(
            f"Cannot write {goal}: pixels of shape {list(pixels.shape)} came, "
            f"[N,C,H,W] with {legal} channels was expected."
        )
    wanted = torch.uint8 if bits == 8 else torch.uint16
    pixels = pixels.detach()
    if pixels.dtype == wanted:
        return pixels.to("cpu")
    if pixels.dtype in _TOPS:
        return _rescaled(pixels.to("cpu"), wanted)
    if not pixels.is_floating_point():
        raise JobFailed(f"Cannot write {goal}: pixels are {pixels.dtype}, not float or uint8.")
    check_finite(pixels, goal=goal)
    top = _TOPS[wanted]
    steps = (pixels.float() * top).round_().clamp_(0, top)
    if bits == 8:
        return steps.to(wanted).to("cpu")
    return steps.to(torch.int32).to("cpu").to(wanted)


def as_floats(pixels: torch.Tensor) -> torch.Tensor:
    """Pixels of any kind as float32: uint8 and uint16 in 0..1, floats as they are."""
    top = _TOPS.get(pixels.dtype)
    return pixels.float() if top is None else pixels.float() / top


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
    if not values.is_floating_point():
        return 0
    # float8 has no isfinite of its own; every float8 value is exact in float32.
    checked = values.float() if values.element_size() == 1 else values
    return int((~torch.isfinite(checked)).sum())


def _rescaled(samples: torch.Tensor, wanted: torch.dtype) -> torch.Tensor:
    """Between 0..255 and 0..65535, rounded to the nearest step."""
    wide = samples.to(torch.int32)
    return (wide * 257 if wanted == torch.uint16 else (wide + 128) // 257).to(wanted)
