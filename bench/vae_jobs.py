"""What `vae.py` measures: VAEs, directions, sizes and budgets, and the inputs of their calls."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scales import smooth_clip
from torch.nn.functional import interpolate

from tightfit.run.vae import Direction, Traits
from tightfit.units import GIB, MIB

WHOLE, OURS, TILED, TILED_512 = "whole", "tightfit", "diffusers-tiled", "diffusers-tiled-512"
EVERY = (WHOLE, OURS, TILED, TILED_512)
_SEED = 7
_COARSE, _COARSE_CLIP = 8, 4
"""Latent pixels to one random value, on each side."""


@dataclass(frozen=True)
class Job:
    """One call of one VAE.

    Attributes:
        name: of its rows; none begins with another.
        network: behind ``random:``.
        direction: which way.
        sizes: of the samples: (height, width) in pixels, or (frames, height, width).
        budget: bytes that `tightfit` may use, weights included.
        dtype: the VAE computes in.
        bar: times the whole run's seconds that are allowed; None asks for an end alone.
        seconds: that all its rows are expected to take on an H200, the start included.
        tile: of the second peer, in pixels.
        card: where there is no GPU.
    """

    name: str
    network: str
    direction: Direction
    sizes: tuple[int, ...]
    budget: int
    dtype: torch.dtype = torch.bfloat16
    bar: float | None = None
    seconds: float = 60.0
    tile: int = 512
    card: str = "virtual:64GiB"

    def source(self, traits: Traits) -> torch.Tensor:
        """What is coded, on the host: a latent [1,C,(T,)H,W], or frames [T,3,H,W] in 0..1."""
        if self.direction == "decode":
            return smooth((1, traits.latent_channels, *traits.latent_sizes(self.sizes)))
        if len(self.sizes) == 3:
            frames, height, width = self.sizes
            clip = smooth_clip(frames, max(height, width), dtype=torch.float32)
            return (clip[0, :, :, :height, :width].transpose(0, 1) + 1) / 2
        return (smooth((1, 3, *self.sizes), coarse=_COARSE * traits.spatial).tanh() + 1) / 2


FULL = (
    Job("flux-vae decode 4096", "flux-vae", "decode", (4096, 4096), 6 * GIB, bar=1.4, seconds=150),
    Job("flux-vae encode 4096", "flux-vae", "encode", (4096, 4096), 6 * GIB, bar=1.4, seconds=70),
    Job(
        "wan2.1-vae decode 81x720x1280",
        "wan2.1-vae",
        "decode",
        (81, 720, 1280),
        4 * GIB,
        bar=1.5,
        seconds=120,
    ),
    Job(
        "seed encode 768x768x13",
        "wan2.1-vae",
        "encode",
        (13, 768, 768),
        3 * GIB // 2,
        dtype=torch.float16,
        bar=1.6,
        seconds=30,
    ),
    Job("flux-vae decode 8192", "flux-vae", "decode", (8192, 8192), 12 * GIB, seconds=150),
)
"""In the order in which they run: the peers of the last may be left out for want of time."""

MINI = (
    Job(
        "flux-vae-mini decode 256",
        "flux-vae-mini",
        "decode",
        (256, 256),
        9 * MIB,
        bar=1.4,
        tile=128,
    ),
    Job(
        "flux-vae-mini encode 256",
        "flux-vae-mini",
        "encode",
        (256, 256),
        9 * MIB,
        bar=1.4,
        tile=128,
    ),
    Job(
        "wan2.1-vae-mini decode 5x64x96",
        "wan2.1-vae-mini",
        "decode",
        (5, 64, 96),
        11 * MIB,
        dtype=torch.float32,
        bar=1.5,
        tile=64,
    ),
    Job(
        "seed-mini encode 96x96x5",
        "wan2.1-vae-mini",
        "encode",
        (5, 96, 96),
        10 * MIB,
        dtype=torch.float32,
        bar=1.6,
        tile=64,
    ),
    Job(
        "flux-vae-mini decode 384",
        "flux-vae-mini",
        "decode",
        (384, 384),
        14 * MIB,
        tile=128,
        card="virtual:24MiB",
    ),
)
"""The same steps where there is no GPU; the last is too large for its whole card."""


def smooth(shape: tuple[int, ...], *, coarse: int | None = None) -> torch.Tensor:
    """Seeded random values of low frequency, as latents are locally smooth: float32 of `shape`.

    One value in `coarse` pixels on each side is drawn, those between are interpolated; of a clip
    each frame is drawn for itself.
    """
    generator = torch.Generator().manual_seed(_SEED)
    moving = len(shape) == 5
    step = coarse or (_COARSE_CLIP if moving else _COARSE)
    *front, height, width = shape
    drawn = torch.randn(*front, -(-height // step), -(-width // step), generator=generator)
    return interpolate(
        drawn,
        size=shape[2:],
        mode="trilinear" if moving else "bicubic",
        align_corners=False,
    )
