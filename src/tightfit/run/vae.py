"""A VAE as this project sees it: a module, what its shapes mean, and how it is called."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from tightfit.errors import UsageError
from tightfit.plan.tiles import Axis

Direction = Literal["encode", "decode"]
Steps = AbstractContextManager[None]


@dataclass(frozen=True)
class Traits:
    """What the shapes of a VAE mean.

    Attributes:
        name: of the class, for files and reports.
        spatial: pixels per latent pixel on each of height and width (samples, for sound).
        temporal: frames per latent frame; 1 for pictures and sound.
        axes: 1 for sound [B,C,L], 2 for pictures [B,C,H,W], 3 for clips [B,C,T,H,W].
        channels: of a sample (3 for colour).
        latent_channels: of a latent.
        lead: the first latent frame stands for one frame alone, so clips have 1 + n × temporal.
        streams_time: the network walks through time by itself and carries a cache, so that its
            activations do not grow with the number of frames; time is then never cut.
        halo: latent units beyond a tile that its result depends on, where somebody knows; None is
            measured when it is needed.
        scale, shift: pipelines use ``(latent - shift) * scale``, per channel or one for all.
        low, high: the range of samples.
        rate: samples a second, of sound, where the network was made for one.
    """

    name: str
    spatial: int
    temporal: int = 1
    axes: int = 2
    channels: int = 3
    latent_channels: int = 4
    lead: bool = False
    streams_time: bool = False
    halo: int | None = None
    scale: tuple[float, ...] = ()
    shift: tuple[float, ...] = ()
    low: float = -1.0
    high: float = 1.0
    rate: int | None = None

    @property
    def tiles_time(self) -> bool:
        """Whether cutting time makes a run smaller."""
        return self.axes == 3 and not self.streams_time

    def latent_axes(self, latent_sizes: tuple[int, ...]) -> tuple[Axis, ...]:
        """The axes behind batch and channels of a latent: [time,] height, width (or length)."""
        if self.axes == 3:
            time, *space = latent_sizes
            return (
                Axis(time, self.temporal, self.lead),
                *(Axis(length, self.spatial) for length in space),
            )
        return tuple(Axis(length, self.spatial) for length in latent_sizes)

    def latent_sizes(self, sample_sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Latent units per axis for whole sample sizes. Raises `UsageError` if they do not fit."""
        names = {1: ("length",), 2: ("height", "width"), 3: ("frames", "height", "width")}
        sizes = []
        for name, size in zip(names[self.axes], sample_sizes, strict=True):
            ratio = self.temporal if name == "frames" else self.spatial
            lead = 1 if self.lead and name == "frames" else 0
            if size < 1 or (size - lead) % ratio:
                rule = f"1 + a multiple of {ratio}" if lead else f"a multiple of {ratio}"
                raise UsageError(f"{self.name} takes a {name} of {rule}, not {size}.")
            sizes.append((size - lead) // ratio + lead)
        return tuple(sizes)

    def padded(self, sample_sizes: tuple[int, ...], *, trim: bool = False) -> tuple[int, ...]:
        """The nearest sizes that the VAE takes: larger, or with `trim` fewer frames."""
        sizes = []
        for at, size in enumerate(sample_sizes):
            time = self.axes == 3 and at == 0
            ratio = self.temporal if time else self.spatial
            lead = 1 if self.lead and time else 0
            units = (size - lead) // ratio if trim and time else -(-(size - lead) // ratio)
            sizes.append(max(units * ratio + lead, lead or ratio))
        return tuple(sizes)


def _nothing() -> None:
    """A module that keeps nothing needs no reset."""


@dataclass(frozen=True)
class Vae:
    """A VAE that can be run.

    Attributes:
        module: owns the weights; on the host between jobs.
        traits: what its shapes mean.
        encode: samples [B,C,…] on the module's device to the latent's mode, raw.
        decode: a raw latent to samples.
        moments: like `encode`, but mean and log variance of the posterior, [B,2C,…]; None where
            there is no posterior.
        reset: drops what the module keeps on itself between calls.
        onward: for VAEs of clips that walk through time: codes a piece [B,C,T,…] that follows the
            one of the last call, whose features the module kept; True begins a clip. Samples come
            or go in whole latent frames, but for the first of a clip. `reset` ends it. None where
            the module cannot.
        steps: for the same VAEs: a context in which `encode` tells each piece in time that it is
            about to read, and `decode` each that it made, on the host and within the range; the
            result is made of them in order. None where the module goes in other steps.
        dtype: what it computes in.
        identity: a hash of the weights, or None.
        random: the weights are random.
    """

    module: nn.Module
    traits: Traits
    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor], torch.Tensor]
    moments: Callable[[torch.Tensor], torch.Tensor] | None = None
    reset: Callable[[], None] = field(default=_nothing)
    onward: Callable[[Direction, torch.Tensor, bool], torch.Tensor] | None = None
    steps: Callable[[Direction, Callable[[torch.Tensor], None]], Steps] | None = None
    dtype: torch.dtype = torch.float32
    identity: str | None = None
    random: bool = False

    def call(self, direction: Direction) -> Callable[[torch.Tensor], torch.Tensor]:
        """`encode` or `decode`."""
        return self.encode if direction == "encode" else self.decode
