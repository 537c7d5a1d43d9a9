"""Between frames and latent files: what is written beside a latent, and what may be decoded."""

from __future__ import annotations

from pathlib import Path

import torch

from tightfit.adapters import find_vae
from tightfit.adapters.known.architectures import ARCHITECTURES
from tightfit.api.result import Frames
from tightfit.api.sources import Footage
from tightfit.api.work import dtype_name
from tightfit.errors import InputError
from tightfit.media.background import lift
from tightfit.media.latents import LatentFile
from tightfit.media.sound import Sound
from tightfit.run.framing import to_frames, to_sound
from tightfit.run.vae import Traits, Vae

_NORMALISED = ("AutoencoderKLLTXVideo",)
"""VAEs that other tools give another space, by statistics that lie in their checkpoints."""


def latent_file(
    latent: torch.Tensor, vae: Vae, footage: Footage, padding: dict[str, int]
) -> LatentFile:
    """A raw latent [B,C,(T,)H,W] with what a decode must know of its VAE and its source."""
    traits = vae.traits
    sound = footage.sound
    if traits.axes == 1:
        assert sound is not None
        return LatentFile(
            latent=latent,
            vae=traits.name,
            vae_hash=vae.identity,
            ratio=(traits.temporal, traits.spatial),
            dtype=dtype_name(vae.dtype),
            width=sound.samples.shape[1],
            height=1,
            padding=padding,
            sound_rate=sound.rate,
        )
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
        sound=None if sound is None else _heard(sound, footage, padding["dropped"]),
        sound_rate=None if sound is None else sound.rate,
    )


def _heard(sound: Sound, footage: Footage, dropped: int) -> torch.Tensor:
    """The sound without what is heard behind the last frame that is coded."""
    if not dropped or footage.fps is None:
        return sound.samples
    kept = (footage.frames.shape[0] - dropped) / footage.fps
    return sound.samples[:, : round(kept * sound.rate)].contiguous()


def pick(content: LatentFile | torch.Tensor, traits: Traits) -> LatentFile | torch.Tensor:
    """Of a latent with several streams, the one that the VAE made; else the latent itself."""
    if not isinstance(content, LatentFile) or content.vae == traits.name:
        return content
    for stream in content.streams.values():
        if stream.vae == traits.name or (stream.vae is None and _shape_fits(stream.latent, traits)):
            return LatentFile(
                latent=stream.latent,
                vae=stream.vae,
                vae_hash=stream.vae_hash,
                scale=stream.scale,
                shift=stream.shift,
                ratio=stream.ratio,
                dtype=stream.dtype,
                width=None,
                height=None,
            )
    return content


def check_latent(
    content: LatentFile | torch.Tensor, traits: Traits, *, path: Path | None = None
) -> None:
    """Refuse a latent of another VAE by name; `path` is where it came from."""
    what = "The latent" if path is None else f"The latent {path}"
    if isinstance(content, LatentFile):
        if content.vae is not None and content.vae != traits.name:
            raise InputError(
                f"{what} was made by {content.vae}, and {traits.name} cannot decode it: give "
                f"--vae a {content.vae}."
            )
        if content.vae is None and traits.name in _NORMALISED:
            raise InputError(
                f"{what} names no VAE, and tools that write such files keep those of "
                f"{traits.name} in another space than its own: decode it where it was made."
            )
        latent = content.latent
    else:
        latent = content
    if not _shape_fits(latent, traits):
        channels, axes = (*latent.shape, 0, 0)[1], max(0, latent.dim() - 2)
        raise InputError(
            f"{what} has {channels} channels on {axes} axes{_of_whom(latent)}, and {traits.name} "
            f"takes {traits.latent_channels} on {traits.axes}."
        )
    if 0 in latent.shape:
        raise InputError(f"{what} of shape {list(latent.shape)} holds nothing.")
    if isinstance(content, LatentFile):
        _check_cover(content, traits, what)


def _shape_fits(latent: torch.Tensor, traits: Traits) -> bool:
    """Whether the VAE takes so many channels on so many axes."""
    return latent.dim() == traits.axes + 2 and latent.shape[1] == traits.latent_channels


def _of_whom(latent: torch.Tensor) -> str:
    """Which of the VAEs that are known by name have latents like this one."""
    named = {
        name: find_vae(f"random:{name}").traits
        for name in ARCHITECTURES
        if not name.endswith("-mini")
    }
    names = [
        name
        for name, known in named.items()
        if latent.dim() == known.axes + 2 and latent.shape[1] == known.latent_channels
    ]
    return f", as those of {' or '.join(names)}" if names else ""


def frames_of(samples: torch.Tensor, traits: Traits, content: LatentFile | torch.Tensor) -> Frames:
    """What a VAE gave, [B,3,(T,)H,W], as frames without padding, with the source's alpha."""
    if traits.axes == 1:
        said = content.width if isinstance(content, LatentFile) else None
        length = samples.shape[-1] if said is None else said
        rate = content.sound_rate if isinstance(content, LatentFile) else None
        made = to_sound(samples, added=samples.shape[-1] - length)
        return Frames(torch.zeros(0, 3, 0, 0), sound=Sound(made, rate or traits.rate or 1))
    if not isinstance(content, LatentFile):
        return Frames(to_frames(samples, traits))
    pixels = to_frames(
        samples,
        traits,
        width=content.width,
        height=content.height,
        frames=content.frames or (1 if traits.axes == 3 and content.width is not None else None),
    )
    if content.alpha is not None and content.background is not None:
        lifted = [
            lift(frame, alpha, background=content.background)
            for frame, alpha in zip(pixels, content.alpha, strict=True)
        ]
        pixels = torch.stack(lifted)
    sound = None
    if content.sound is not None and content.sound_rate is not None:
        sound = Sound(content.sound, content.sound_rate)
    return Frames(pixels, content.fps, sound)


def _check_cover(file: LatentFile, traits: Traits, what: str) -> None:
    """Refuse a latent that is smaller than the picture or clip it says it is of."""
    if file.width is None or file.height is None:
        return
    sizes = [axis.samples for axis in traits.latent_axes(tuple(file.latent.shape[2:]))]
    frames = (file.frames or 1,) if traits.axes == 3 else ()
    said = (file.width,) if traits.axes == 1 else (*frames, file.height, file.width)
    if any(size < least for size, least in zip(sizes, said, strict=True)):
        raise InputError(
            f"{what} covers {'x'.join(map(str, sizes))}, and its metadata say "
            f"{'x'.join(map(str, said))}: it was cut, or they were changed; encode it anew."
        )
    pictures = file.latent.shape[0] * (frames[0] if frames else 1)
    if file.alpha is not None and file.alpha.shape[0] != pictures:
        raise InputError(
            f"{what} is of {pictures} frames, and its alpha of {file.alpha.shape[0]}: drop the "
            "alpha, or encode it anew."
        )
