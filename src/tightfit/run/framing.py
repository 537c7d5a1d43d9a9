"""From frames to what a VAE takes, and from what it gives back to frames."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tightfit.errors import UsageError
from tightfit.run.vae import Traits

TOPS = {torch.uint8: 255, torch.uint16: 65535}
"""White, of samples that are integers."""


@dataclass(frozen=True)
class Padding:
    """What was added at the end of each axis of the source; `dropped` frames were left out.

    Attributes:
        frames: repeats of the last frame.
        bottom, right: repeats of the last row and column, in pixels.
        dropped: frames at the end that were not coded.
    """

    frames: int = 0
    bottom: int = 0
    right: int = 0
    dropped: int = 0

    def as_dict(self) -> dict[str, int]:
        """For the metadata of a latent."""
        return {
            "frames": self.frames,
            "bottom": self.bottom,
            "right": self.right,
            "dropped": self.dropped,
        }


def to_source(
    frames: torch.Tensor, traits: Traits, *, trim: bool = False
) -> tuple[torch.Tensor, Padding]:
    """Frames [T,3,H,W] (float 0..1 or integers) as a batch for a VAE, padded to sizes it takes.

    A VAE of clips gets [1,3,T',H',W']; a VAE of pictures gets each frame as an item, [T,3,H',W'].
    Padding repeats the last frame, row and column; with `trim`, surplus frames at the end are
    left out instead. Values are float32 in the VAE's range.
    """
    padding = padding_of(tuple(frames.shape), traits, trim=trim)
    # A copy of our own from here on, of which there is never a second one for long.
    x = frames[: len(frames) - padding.dropped].to(torch.float32, copy=True)
    top = TOPS.get(frames.dtype)
    if top is not None:
        x.div_(top)
    if padding.right or padding.bottom:
        x = torch.nn.functional.pad(x, (0, padding.right, 0, padding.bottom), mode="replicate")
    if padding.frames:
        x = torch.cat([x, x[-1:].expand(padding.frames, -1, -1, -1)])
    x.mul_(traits.high - traits.low).add_(traits.low)
    return (x.transpose(0, 1).unsqueeze(0).contiguous() if traits.axes == 3 else x), padding


def padding_of(frames: tuple[int, ...], traits: Traits, *, trim: bool = False) -> Padding:
    """What `to_source` does to frames of this shape, [T,3,H,W]. Raises `UsageError` as it does."""
    if traits.axes == 1 or traits.channels != frames[1]:
        raise UsageError(
            f"{traits.name} takes {traits.channels} channels on {traits.axes} axes: no pictures."
        )
    count, _, height, width = frames
    time = (count,) if traits.axes == 3 else ()
    target = traits.padded((*time, height, width), trim=trim)
    kept = min(count, target[0]) if time else count
    return Padding(
        frames=max(0, target[0] - count) if time else 0,
        bottom=target[-2] - height,
        right=target[-1] - width,
        dropped=count - kept,
    )


def to_frames(
    samples: torch.Tensor,
    traits: Traits,
    *,
    width: int | None = None,
    height: int | None = None,
    frames: int | None = None,
) -> torch.Tensor:
    """What a VAE gives, [B,3,(T,)H,W] in its range, as frames [B×T,3,H,W] in 0..1.

    Cut to `frames` per item, `height` and `width` where they are known, so that padding goes.
    """
    x = samples.float()
    if traits.axes == 3:
        x = x[:, :, :frames].transpose(1, 2).flatten(0, 1)
    x = x[..., :height, :width]
    return ((x - traits.low) / (traits.high - traits.low)).clamp(0, 1)


def sound_to_source(samples: torch.Tensor, traits: Traits) -> tuple[torch.Tensor, int]:
    """Sound [C,L] as a batch [1,C,L'] for a VAE of sound, and how many samples were added.

    The last sample is repeated up to a whole number of hops.
    """
    if traits.axes != 1 or samples.dim() != 2 or traits.channels != samples.shape[0]:
        raise UsageError(
            f"{traits.name} takes {traits.channels} channels on {traits.axes} axes: sound of shape "
            f"{list(samples.shape)} does not fit."
        )
    (length,) = traits.padded((samples.shape[-1],))
    added = length - samples.shape[-1]
    source = torch.nn.functional.pad(samples.float().unsqueeze(0), (0, added), mode="replicate")
    return source, added


def to_sound(samples: torch.Tensor, *, added: int) -> torch.Tensor:
    """What a VAE of sound gives, [1,C,L'], as sound [C,L'-`added`]."""
    return samples[0, :, : samples.shape[-1] - added].float()
