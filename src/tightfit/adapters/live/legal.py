"""Which sizes a pipeline takes, by its denoiser and its VAE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tightfit.adapters.known.sizes import grid_of
from tightfit.adapters.parts import Part, full_config
from tightfit.adapters.traits import traits_of
from tightfit.errors import InputError, UsageError
from tightfit.plan.size import LARGEST_SIDE, MOST_FRAMES


@dataclass(frozen=True)
class Legal:
    """Sizes in pixels and frames.

    Attributes:
        name: of the class that takes them.
        side: widths and heights are multiples of it.
        frames: frames are 1 and a multiple of it; None where nobody knows, or for pictures.
        largest: that a side can be; None is no bound.
    """

    name: str
    side: int
    frames: int | None = None
    largest: int | None = None

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Legal | None:
        """Of the networks of a pipeline; None where the denoiser is not known here."""
        networks = list(parts)
        for part in networks:
            with suppress(InputError):
                grid = grid_of(part)
                vae = _vae(networks)
                spatial = grid.spatial if vae is None else vae[0]
                frames = grid.temporal if vae is None or grid.temporal is None else vae[1]
                return cls(part.class_name, spatial * grid.patch, frames, grid.largest)
        return None

    def check(self, *, width: int | None, height: int | None, frames: int | None) -> None:
        """Refuse a size that is not taken, with the nearest ones that are. Raises `UsageError`."""
        for option, side in (("--width", width), ("--height", height)):
            if side is None:
                continue
            most = min(LARGEST_SIDE, self.largest or LARGEST_SIDE)
            if not 1 <= side <= most:
                raise UsageError(
                    f"{option} `{side}` is out of range: {self.name} takes 1 to {most}."
                )
            if side % self.side:
                near = _near(side, self.side, 0, most)
                raise UsageError(
                    f"{option} `{side}` is no multiple of {self.side}, which {self.name} takes: "
                    f"use {near}."
                )
        if frames is None:
            return
        if not 1 <= frames <= MOST_FRAMES:
            raise UsageError(f"--frames `{frames}` is out of range: use 1 to {MOST_FRAMES}.")
        if self.frames is not None and (frames - 1) % self.frames:
            near = _near(frames, self.frames, 1, MOST_FRAMES)
            raise UsageError(
                f"--frames `{frames}` is not 1 and a multiple of {self.frames}, which {self.name} "
                f"takes: use {near}."
            )


def live_parts(networks: Mapping[str, Any]) -> tuple[Part, ...]:
    """Networks that somebody has loaded, as far as their class and configuration tell."""
    return tuple(
        Part(name, "", name, "", "diffusers", type(module).__name__, dict(module.config))
        for name, module in networks.items()
        if type(module).__module__.startswith("diffusers") and hasattr(module, "config")
    )


def _vae(parts: Iterable[Part]) -> tuple[int, int] | None:
    """Pixels and frames per latent pixel and latent frame."""
    for part in parts:
        with suppress(InputError, KeyError, TypeError):
            traits = traits_of(part.class_name, full_config(part))
            return traits.spatial, traits.temporal
    return None


def _near(value: int, step: int, lead: int, most: int) -> str:
    """The legal values below and above."""
    below = (value - lead) // step * step + lead
    both = [each for each in (below, below + step) if max(1, lead) <= each <= most]
    return " or ".join(map(str, both))
