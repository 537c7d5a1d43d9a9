"""`generate` on tiny pipelines: short prompts, small sizes, virtual cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image

import tightfit
from tests.pipelines import tiny

ROOMY = "virtual:1GiB"
SIZES: dict[str, dict[str, int]] = {
    "flux": {"width": 64, "height": 64},
    "sdxl": {"width": 64, "height": 64},
    "wan": {"width": 32, "height": 32, "frames": 5},
}


class Short(tiny.Letters):
    """A tokenizer that never pads a prompt to hundreds of tokens."""

    def __call__(self, text: str | list[str], *, max_length: int = 16, **kwargs: Any) -> Any:
        return super().__call__(text, max_length=min(max_length, 16), **kwargs)


def pipeline(kind: str) -> Any:
    """Of diffusers, on the host."""
    pipe = getattr(tiny, kind)()
    for name in ("tokenizer", "tokenizer_2"):
        if hasattr(pipe, name):
            setattr(pipe, name, Short())
    return pipe


def make(kind: str, pipe: Any = None, **more: Any) -> Any:
    """Two steps from seed 1."""
    given = {"prompt": "a cat", "steps": 2, "seed": 1, "card": ROOMY, **SIZES[kind], **more}
    return tightfit.generate(pipeline(kind) if pipe is None else pipe, **given)


def picture(path: Path, width: int = 64, height: int = 64) -> Path:
    """Of noise."""
    draw = torch.Generator().manual_seed(2)
    pixels = torch.randint(0, 256, (height, width, 3), generator=draw, dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(path)
    return path


def mask(path: Path, width: int = 64, height: int = 64) -> Path:
    """White on the right."""
    pixels = torch.zeros(height, width, dtype=torch.uint8)
    pixels[:, width // 2 :] = 255
    Image.fromarray(pixels.numpy()).save(path)
    return path
