"""Toy VAEs: small networks with the traits that make tiling and recovery hard.

| name | what it is |
|---|---|
| V2 | pictures, 8x, bounded receptive field, no norm: tiles can be exact |
| V2N | pictures, 8x, group norm and attention: every pixel depends on every other |
| V2P | pictures, 8x network behind a patchify of 2, so 16x in all |
| V3 | clips, 8x and 4x in time, causal, keeps a feature cache on itself |
| VA | stereo sound, hop 1920, weight-normed |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from tightfit.errors import UsageError
from tightfit.run.vae import Traits, Vae

_HOPS = (2, 4, 5, 6, 8)


def toy_vae(name: str, *, width: int = 16, seed: int = 0) -> Vae:
    """The toy VAE `name`, seeded, in float32, without gradients.

    Args:
        name: ``V2``, ``V2N``, ``V2P``, ``V3`` or ``VA``.
        width: channels of the hidden layers (a multiple of 4).
        seed: of the weights; the caller's random state is left alone.
    """
    makers: dict[str, Callable[[int], tuple[nn.Module, Traits]]] = {
        "V2": lambda w: (_Picture(w, norm=False, patch=1), Traits("V2", 8)),
        "V2N": lambda w: (_Picture(w, norm=True, patch=1), Traits("V2N", 8)),
        "V2P": lambda w: (_Picture(w, norm=False, patch=2), Traits("V2P", 16)),
        "V3": lambda w: (
            _Clip(w),
            Traits(
                "V3",
                8,
                temporal=4,
                axes=3,
                latent_channels=16,
                lead=True,
                streams_time=True,
            ),
        ),
        "VA": lambda w: (_Sound(w), Traits("VA", 1920, axes=1, channels=2, latent_channels=64)),
    }
    if name not in makers:
        raise UsageError(f"toy VAE `{name}` is unknown: use {', '.join(makers)}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, traits = makers[name](width)
        for parameter_name, parameter in module.named_parameters():
            if parameter.dim() > 1 and "original0" not in parameter_name:
                nn.init.kaiming_normal_(parameter, nonlinearity="relu")
    module.eval().requires_grad_(False)
    return wrap_toy(module, traits)


def wrap_toy(module: nn.Module, traits: Traits) -> Vae:
    """A `Vae` around a module that has ``encode``, ``decode`` and, maybe, ``clear_cache``, and
    ``encode_on`` and ``decode_on``, which go on where the last call ended, and ``steps_told``."""
    toy: Any = module
    vae = Vae(module, traits, toy.encode, toy.decode, random=True)
    if hasattr(module, "clear_cache"):
        vae = replace(vae, reset=toy.clear_cache)
    if hasattr(module, "decode_on"):
        ways = {"encode": toy.encode_on, "decode": toy.decode_on}
        vae = replace(vae, onward=lambda direction, x, first: ways[direction](x, first))
    if hasattr(module, "steps_told"):
        vae = replace(vae, steps=toy.steps_told)
    return vae


def _conv(inside: int, outside: int, *, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, 3, stride, padding=1, padding_mode="replicate")


class _Norm(nn.Module):
    """Group norm, and attention over all pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.qkv = nn.Conv2d(width, 3 * width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, width, height, length = x.shape
        q, k, v = (
            part.flatten(2).transpose(1, 2).unsqueeze(1).contiguous()
            for part in self.qkv(self.norm(x)).chunk(3, dim=1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return x + mixed.squeeze(1).transpose(1, 2).reshape(batch, width, height, length)


class _Picture(nn.Module):
    """[B,3,H,W] to [B,4,H/8,W/8] and back; the patch, if any, is folded into channels first."""

    def __init__(self, width: int, *, norm: bool, patch: int) -> None:
        super().__init__()
        colours = 3 * patch * patch
        self.patch = patch
        self.down = nn.ModuleList(
            [_conv(colours, width), *(_conv(width, width, stride=2) for _ in range(3))]
        )
        self.middle = _Norm(width) if norm else nn.Identity()
        self.to_latent = _conv(width, 4)
        self.from_latent = _conv(4, width)
        self.middle_up = _Norm(width) if norm else nn.Identity()
        self.up = nn.ModuleList([_conv(width, width) for _ in range(3)])
        self.to_colour = _conv(width, colours)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.pixel_unshuffle(x, self.patch) if self.patch > 1 else x
        for layer in self.down:
            x = functional.silu(layer(x))
        latent: torch.Tensor = self.to_latent(self.middle(x))
        return latent

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        x = self.middle_up(self.from_latent(z))
        for layer in self.up:
            x = functional.silu(layer(functional.interpolate(x, scale_factor=2.0)))
        x = self.to_colour(x)
        return functional.pixel_shuffle(x, self.patch) if self.patch > 1 else x


class _Clip(nn.Module):
    """[B,3,1+4n,H,W] to [B,16,1+n,H/8,W/8] and back, a latent frame at a time.

    Each step remembers the features of the last one in `_feat`, as causal video VAEs do; a call
    that fails leaves them there.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frame_in = nn.ModuleList(
            [_conv(3, width), *(_conv(width, width, stride=2) for _ in range(3))]
        )
        self.time_in = nn.Conv3d(width, width, (5, 1, 1))
        self.to_latent = nn.Conv3d(width, 16, 1)
        self.from_latent = nn.Conv3d(16, width, 1)
        self.time_out = nn.Conv3d(width, 4 * width, (2, 1, 1))
        self.frame_out = nn.ModuleList([_conv(width, width) for _ in range(3)])
        self.to_colour = _conv(width, 3)
        self._tell: dict[str, Callable[[torch.Tensor], None]] = {}
        self.clear_cache()

    def clear_cache(self) -> None:
        """Forget the features of the last call."""
        self._feat: list[torch.Tensor | None] = [None] * 5

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        self.clear_cache()
        latent = self.encode_on(x, True)
        self.clear_cache()
        return latent

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        self.clear_cache()
        frames = self.decode_on(z, True)
        self.clear_cache()
        return frames

    @contextmanager
    def steps_told(self, direction: str, tell: Callable[[torch.Tensor], None]) -> Iterator[None]:
        """While inside, `tell` is given what each step will read, or what it made."""
        self._tell = {direction: tell}
        try:
            yield
        finally:
            self._tell = {}

    def encode_on(self, x: torch.Tensor, first: bool) -> torch.Tensor:
        """[B,3,4n,H,W], or 1+4n frames that begin a clip."""
        latents = [self._encode_step(x[:, :, :1], first=True)] if first else []
        for start in range(1 if first else 0, x.shape[2], 4):
            latents.append(self._encode_step(x[:, :, start : start + 4], first=False))
        return torch.cat(latents, dim=2)

    def decode_on(self, z: torch.Tensor, first: bool) -> torch.Tensor:
        """[B,16,n,H,W], whose first latent frame may begin a clip."""
        steps = range(z.shape[2])
        frames = [self._decode_step(z[:, :, at : at + 1], first and at == 0) for at in steps]
        return torch.cat(frames, dim=2)

    def _encode_step(self, x: torch.Tensor, *, first: bool) -> torch.Tensor:
        if "encode" in self._tell:
            self._tell["encode"](x)
        for at, layer in enumerate(self.frame_in):
            x = functional.silu(_per_frame(layer, x))
            self._feat[at] = x[:, :, -1:].clone()
        before = x[:, :, :1] if first else self._feat[4]
        assert before is not None
        joined = torch.cat([before, x.expand(-1, -1, 4, -1, -1) if first else x], dim=2)
        self._feat[4] = x[:, :, -1:].clone()
        latent: torch.Tensor = self.to_latent(self.time_in(joined))
        return latent

    def _decode_step(self, z: torch.Tensor, first: bool) -> torch.Tensor:
        x = self.from_latent(z)
        before = x if first else self._feat[4]
        assert before is not None
        self._feat[4] = x.clone()
        batch, _, _, height, length = x.shape
        wide = self.time_out(torch.cat([before, x], dim=2))
        x = wide.view(batch, -1, 4, height, length)
        x = x[:, :, -1:] if first else x
        for at, layer in enumerate(self.frame_out):
            x = _per_frame(lambda y: functional.interpolate(y, scale_factor=2.0), x)
            x = functional.silu(_per_frame(layer, x))
            self._feat[at] = x[:, :, -1:].clone()
        made = _per_frame(self.to_colour, x)
        if "decode" in self._tell:
            self._tell["decode"](made.detach().to("cpu"))
        return made


def _per_frame(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Apply a picture layer to every frame of [B,C,T,H,W]."""
    batch, _, frames = x.shape[:3]
    flat = layer(x.transpose(1, 2).flatten(0, 1))
    return flat.view(batch, frames, *flat.shape[1:]).transpose(1, 2)


class _Sound(nn.Module):
    """[B,2,1920n] to [B,64,n] and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [2, *([width] * len(_HOPS))]
        self.down = nn.ModuleList(
            weight_norm(nn.Conv1d(a, b, hop, hop))
            for a, b, hop in zip(widths, widths[1:], _HOPS, strict=False)
        )
        self.to_latent = weight_norm(nn.Conv1d(width, 64, 1))
        self.from_latent = weight_norm(nn.Conv1d(64, width, 1))
        self.up = nn.ModuleList(
            weight_norm(nn.ConvTranspose1d(b, a, hop, hop))
            for a, b, hop in reversed(list(zip(widths, widths[1:], _HOPS, strict=False)))
        )

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.down:
            x = torch.tanh(layer(x))
        latent: torch.Tensor = self.to_latent(x)
        return latent

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.from_latent(z)
        for layer in self.up:
            x = layer(torch.tanh(x))
        return x
