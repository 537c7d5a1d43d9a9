"""Between frames and latent files: what is written beside a latent, and what may be decoded."""

from __future__ import annotations

import torch

from tightfit.api.result import Frames
from tightfit.api.sources import Footage
from tightfit.api.work import dtype_name
from tightfit.errors import InputError
from tightfit.media.background import lift
from tightfit.media.latents import LatentFile
from tightfit.run.framing import to_frames
from tightfit.run.vae import Traits, Vae


def latent_file(
    latent: torch.Tensor, vae: Vae, footage: Footage, padding: dict[str, int]
) -> LatentFile:
    """A raw latent [B,C,(T,)H,W] with what a decode must know of its VAE and its source."""
    traits = vae.traits
    moving = footage.fps is not None or footage.frames.shape[0] > 1
    return LatentFile(
        latent=latent,
        vae=traits.name,
        vae_hash=vae.identity,
        scale=traits.scale or None,
        shift=traits.shift or None,
        ratio=(traits.temporal, traits.spatial),
        dtype=dtype_name(vae.dtype),
        width=footage.frames.shape[-1],
        height=footage.frames.shape[-2],
        frames=footage.frames.shape[0] - padding["dropped"] if moving else None,
        fps=footage.fps,
        padding=padding,
        alpha=footage.alpha,
        background=footage.background,
    )


def check_latent(content: LatentFile | torch.Tensor, traits: Traits) -> None:
    """Refuse a latent of another VAE by name."""
    if isinstance(content, LatentFile):
        if content.vae != traits.name:
            raise InputError(
                f"The latent was made by {content.vae}, and {traits.name} cannot decode it: give "
                f"--vae a {content.vae}."
            )
        latent = content.latent
    else:
        latent = content
    batch, channels, *sizes = (*latent.shape, 0, 0)[: max(2, latent.dim())]
    if len(sizes) != traits.axes or channels != traits.latent_channels:
        raise InputError(
            f"The latent has {channels} channels on {len(sizes)} axes, and {traits.name} takes "
            f"{traits.latent_channels} on {traits.axes}."
        )
    if 0 in (batch, *sizes):
        raise InputError(f"The latent of shape {list(latent.shape)} holds nothing.")
    if isinstance(content, LatentFile):
        _check_cover(content, traits)


def frames_of(samples: torch.Tensor, traits: Traits, content: LatentFile | torch.Tensor) -> Frames:
    """What a VAE gave, [B,3,(T,)H,W], as frames without padding, with the source's alpha."""
    if not isinstance(content, LatentFile):
        return Frames(to_frames(samples, traits))
    pixels = to_frames(
        samples,
        traits,
        width=content.width,
        height=content.height,
        frames=content.frames or (1 if traits.axes == 3 else None),
    )
    if content.alpha is not None and content.background is not None:
        lifted = [
            lift(frame, alpha, background=content.background)
            for frame, alpha in zip(pixels, content.alpha, strict=True)
        ]
        pixels = torch.stack(lifted)
    return Frames(pixels, content.fps)


def _check_cover(file: LatentFile, traits: Traits) -> None:
    """Refuse a latent that is smaller than the picture or clip it says it is of."""
    sizes = [axis.samples for axis in traits.latent_axes(tuple(file.latent.shape[2:]))]
    frames = (file.frames or 1,) if traits.axes == 3 else ()
    said = (*frames, file.height, file.width)
    if any(size < least for size, least in zip(sizes, said, strict=True)):
        raise InputError(
            f"The latent covers {'x'.join(map(str, sizes))}, and its metadata say "
            f"{'x'.join(map(str, said))}: it was cut, or they were changed; encode it anew."
        )
    pictures = file.latent.shape[0] * (frames[0] if frames else 1)
    if file.alpha is not None and file.alpha.shape[0] != pictures:
        raise InputError(
            f"The latent is of {pictures} frames, and its alpha of {file.alpha.shape[0]}: drop the "
            "alpha, or encode it anew."
        )
