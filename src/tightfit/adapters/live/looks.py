"""What latents look like on their way, roughly, without a decode of them.

A VAE makes a patch of pixels of the channels at one place of a latent. To the mean colours of such
patches a linear map is fitted, once, by least squares on what the VAE itself gives for small random
latents: four of 8 x 8. So it fits whatever weights the VAE has; a place has one colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tightfit.adapters.diffusers_vae import adapt
from tightfit.adapters.traits import traits_of
from tightfit.errors import InputError, UsageError
from tightfit.run.vae import Traits
from tightfit.weigh.tensors import weights

_ITEMS, _SIDE, _COARSE = 4, 8, 4
"""Random latents that are looked at, their side, and that of the noise that they are drawn from:
neighbours are alike in pictures."""
_SEED = 0
_PACKED = 2
"""Transformers are given so many latent values along each axis as one token."""
_STRAIGHT = ("FlowMatchEulerDiscreteScheduler", "EulerDiscreteScheduler")
"""Schedulers whose step goes straight for what they expect at the end."""


@dataclass(frozen=True, eq=False)
class Look:
    """Of the latents of one VAE.

    Attributes:
        traits: of the VAE.
        colours: [C,3], what a latent channel adds to red, green and blue in -1..1.
        grey: [3], where all of them are 0.
        scales, shifts: of packed channels, where the VAE has such; a pipeline undoes them.
    """

    traits: Traits
    colours: torch.Tensor
    grey: torch.Tensor
    scales: torch.Tensor | None = None
    shifts: torch.Tensor | None = None

    @classmethod
    def of(cls, vae: nn.Module) -> Look:
        """Look at what `vae`, on the host, gives for a few small latents; random states stay.

        Takes some seconds. Raises `UsageError`, which says why, for a VAE of no pictures, of a
        class that is not known, or elsewhere than on the host.
        """
        name = type(vae).__name__
        try:
            traits = traits_of(name, getattr(vae, "config", {}))
        except InputError as error:
            raise UsageError(f"no preview: {error}") from None
        first = next(weights(vae)).tensor
        if traits.axes not in (2, 3) or traits.channels != 3 or first.device.type != "cpu":
            raise UsageError(f"no preview: `{name}` makes no pictures, or is not on the host.")
        generator = torch.Generator().manual_seed(_SEED)
        shape = (_ITEMS, traits.latent_channels, _COARSE, _COARSE)
        coarse = torch.randn(shape, generator=generator)
        latents = functional.interpolate(coarse, size=(_SIDE, _SIDE), mode="bilinear") * 1.5
        raw = _raw(latents, traits)
        known = adapt(vae, hashed=False)
        given = raw if traits.axes == 2 else raw.unsqueeze(2)
        with torch.no_grad():
            kind: Any = type(vae)  # the instance's own decode goes to the card, by its ladder
            pixels = kind.decode(vae, given.to(known.dtype), return_dict=False)[0].float()
        if known.reset is not None:
            known.reset()
        pixels = pixels if traits.axes == 2 else pixels[:, :, -1]
        squares = functional.adaptive_avg_pool2d(pixels, (_SIDE, _SIDE))
        known_ones = torch.cat([_rows(raw), torch.ones(raw[:, 0].numel(), 1)], dim=1)
        fitted = torch.linalg.lstsq(known_ones, _rows(squares)).solution
        scales, shifts = _norm_of(vae)
        return cls(traits, fitted[:-1], fitted[-1], scales, shifts)

    def __call__(
        self, latents: torch.Tensor, *, height: int | None, width: int | None
    ) -> torch.Tensor | None:
        """RGB in 0..1 [B,3,h,w] of `latents` as a pipeline has them between two steps, on the host.

        Of a clip, its middle. `height` and `width` are of the picture, in pixels; without, packed
        latents are taken to be square. None for latents in an order that is not known.
        """
        spatial = self._spatial(latents.detach().float(), height, width)
        if spatial is None:
            return None
        seen = torch.einsum("bchw,cr->brhw", spatial, self.colours)
        return ((seen + self.grey.view(1, 3, 1, 1)) * 0.5 + 0.5).clamp(0, 1)

    def _spatial(
        self, latents: torch.Tensor, height: int | None, width: int | None
    ) -> torch.Tensor | None:
        """[B,C,h,w] in the VAE's own space."""
        channels = self.traits.latent_channels
        if latents.dim() == 5 and latents.shape[1] == channels:
            latents = latents[:, :, latents.shape[2] // 2]
        if latents.dim() == 4 and latents.shape[1] == channels:
            return _raw(latents, self.traits)
        if latents.dim() != 3 or latents.shape[2] != channels * _PACKED**2:
            return None
        grid = self._grid(latents.shape[1], height, width)
        if grid is None:
            return None
        if self.scales is not None and self.shifts is not None:
            latents = latents * self.scales + self.shifts
        apart = latents.reshape(latents.shape[0], *grid, channels, _PACKED, _PACKED)
        together = apart.permute(0, 3, 1, 4, 2, 5)
        size = (grid[0] * _PACKED, grid[1] * _PACKED)
        return _raw(together.reshape(latents.shape[0], channels, *size), self.traits)

    def _grid(self, count: int, height: int | None, width: int | None) -> tuple[int, int] | None:
        """Rows and columns of so many tokens."""
        if height is None or width is None:
            side = math.isqrt(count)
            grid = side, side
        else:
            each = self.traits.spatial * _PACKED
            grid = height // each, width // each
        return grid if grid[0] * grid[1] == count else None


def expected(scheduler: Any, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """What the latents will be at the end, as a step from `before` to `after` points at it.

    An Euler step goes in a straight line through that, in the noise that is left. Of other
    schedulers, and where that cannot be told, it is `after` itself. On the host.
    """
    start, end = before.detach().to("cpu").float(), after.detach().to("cpu").float()
    sigmas, at = getattr(scheduler, "sigmas", None), getattr(scheduler, "step_index", None)
    config: Mapping[str, Any] = getattr(scheduler, "config", {})
    straight = type(scheduler).__name__ in _STRAIGHT or config.get("use_flow_sigmas")
    if not straight or config.get("stochastic_sampling"):
        return end
    if not isinstance(at, int) or sigmas is None or not 1 <= at < len(sigmas):
        return end
    was, now = float(sigmas[at - 1]), float(sigmas[at])
    if start.shape != end.shape or was <= now:
        return end
    return start + (end - start) * (was / (was - now))


def _raw(latents: torch.Tensor, traits: Traits) -> torch.Tensor:
    """As the VAE is given them."""
    if traits.scale:
        latents = latents / _along(traits.scale)
    return latents + _along(traits.shift) if traits.shift else latents


def _along(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values).view(1, -1, 1, 1)


def _rows(values: torch.Tensor) -> torch.Tensor:
    """[B,C,h,w] as [Bhw,C]."""
    return values.movedim(1, -1).flatten(0, 2)


def _norm_of(vae: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """FLUX.2's latents are normed by statistics that its VAE carries."""
    norm = getattr(vae, "bn", None)
    if norm is None or norm.running_mean is None:
        return None, None
    scales = torch.sqrt(norm.running_var.float() + vae.config.batch_norm_eps)
    return scales, norm.running_mean.float()
