"""How large the job of a benchmark is, and the clip that it codes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tightfit.units import parse_bytes

_SEED = 7


@dataclass(frozen=True)
class Scale:
    """How large the job is.

    Attributes:
        spec: of the VAE.
        dtype: it computes in.
        frames, side: of the input, in pixels.
        limits: label → budget; where it is below 2, a share of the whole run's reserved peak.
        tiles: of the plain retry, in pixels.
        overlap: of its tiles, in pixels.
        passes: how often each way is timed, at most.
    """

    spec: str
    dtype: torch.dtype
    frames: int
    side: int
    limits: dict[str, float]
    tiles: tuple[int, ...]
    overlap: int
    passes: int


FULL = Scale(
    "random:wan2.1-vae",
    torch.float16,
    13,
    768,
    {text: float(parse_bytes(text)) for text in ("6GiB", "4GiB", "3GiB", "2GiB", "1.5GiB")},
    (512, 256, 128),
    64,
    3,
)
SMALL = Scale(
    "random:wan2.1-vae-mini",
    torch.float32,
    13,
    192,
    {"120%": 1.2, "60%": 0.6, "30%": 0.3},
    (128, 64),
    16,
    1,
)


def smooth_clip(frames: int, side: int, *, dtype: torch.dtype) -> torch.Tensor:
    """Seeded smooth content [1,3,T,H,W] in [-1, 1]: soft shapes that move, with finer ones on."""
    generator = torch.Generator().manual_seed(_SEED)
    clip = torch.zeros(1, 3, frames, side, side)
    for cells, strength in ((6, 1.0), (24, 0.35), (96, 0.1)):
        coarse = torch.randn(1, 3, 4, min(cells, side), min(cells, side), generator=generator)
        clip += strength * torch.nn.functional.interpolate(
            coarse, size=(frames, side, side), mode="trilinear", align_corners=False
        )
    return clip.tanh().to(dtype)
