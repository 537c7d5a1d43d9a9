"""Pictures and clips that several tests share."""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tightfit.media.clip_writer import ClipWriter
from tightfit.media.picture import read_picture


def smooth(*shape: int, seed: int = 0) -> torch.Tensor:
    """Smooth random values in 0..1, [T,3,H,W] or [3,H,W]: waves, as in pictures, not noise."""
    generator = torch.Generator().manual_seed(seed)
    *lead, height, width = shape
    phases = torch.rand((*lead, 4), generator=generator) * 6.28
    y = torch.linspace(0, 6.28, height).view(-1, 1)
    x = torch.linspace(0, 6.28, width).view(1, -1)
    p = phases[..., None, None]
    waves = torch.sin(y + p[..., 0, :, :]) + torch.sin(2 * x + p[..., 1, :, :])
    waves = waves + torch.sin(x * 3 - y * 2 + p[..., 2, :, :])
    return (waves / 6 + 0.5).contiguous()


def photograph() -> torch.Tensor:
    """A photograph of a cat, [3,300,451] in 0..1, read from scikit-image's wheel as data."""
    spec = importlib.util.find_spec("skimage")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0]) / "data" / "chelsea.png"
    return read_picture(path).pixels


def write_rgba(path: Path, width: int, height: int) -> Path:
    """An RGBA PNG of waves whose alpha is a gradient."""
    colour = (smooth(3, height, width) * 255).byte().permute(1, 2, 0).numpy()
    alpha = np.broadcast_to(np.linspace(0, 255, width).astype(np.uint8), (height, width))
    Image.fromarray(np.dstack([colour, alpha]), "RGBA").save(path)
    return path


def write_clip(path: Path, frames: int, width: int, height: int) -> Path:
    """An MP4 of waves."""
    with ClipWriter(path, width, height, Fraction(24)) as writer:
        writer.write(smooth(frames, 3, height, width))
    return path
