"""Latents in the plain layouts that common tools write: a tensor by a known name, and no more.

``latent_tensor`` is what ComfyUI's node SaveLatent writes (files called ``.latent``), with an empty
tensor ``latent_format_version_0`` beside it; without that one the file is of the time when latents
were saved multiplied by Stable Diffusion 1's factor 0.18215, which is divided out here. ``samples``
is the same value under the name that it has within that program, in files that were saved from
there with ``noise_mask`` and ``batch_index``. Both are in the raw space of their VAE, which no such
file names: so only shapes can tell whether a VAE decodes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

NAMES = ("latent_tensor", "samples")
NEWER = "latent_format_version_0"
OLD_FACTOR = 0.18215
_MASK, _INDEX = "noise_mask", "batch_index"


def name_in(names: Collection[str]) -> str | None:
    """The tensor that holds the latent, of those in a file; None where it is in no such layout."""
    return next((name for name in NAMES if name in names), None)


def read(tensors: Mapping[str, torch.Tensor], name: str) -> dict[str, Any]:
    """What a file says, as arguments of `LatentFile`; dtypes are kept.

    Raises `ValueError` where it makes no sense.
    """
    latent = tensors[name]
    if name == NAMES[0] and NEWER not in tensors:
        latent = (latent.double() / OLD_FACTOR).to(latent.dtype)
    return {
        "latent": latent,
        "mask": tensors.get(_MASK),
        "batch_index": _index(tensors.get(_INDEX)),
    }


def _index(value: torch.Tensor | None) -> tuple[int, ...] | None:
    if value is None or value.device.type == "meta":
        return None
    if value.is_floating_point() or value.is_complex():
        raise ValueError(f"batch_index is of {value.dtype}")
    return tuple(int(number) for number in value.reshape(-1).tolist())
