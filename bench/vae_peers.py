"""A VAE of diffusers as its users call it: whole, or in the tiles of diffusers itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tightfit.run.vae import Direction


def plain(
    module: nn.Module, direction: Direction, device: torch.device
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A call from host tensor to host tensor; an encode gives the posterior's mode."""
    vae: Any = module

    def call(values: torch.Tensor) -> torch.Tensor:
        loaded = values.to(device)
        with torch.no_grad():
            if direction == "encode":
                done = vae.encode(loaded, return_dict=False)[0].mode()
            else:
                done = vae.decode(loaded, return_dict=False)[0]
        result: torch.Tensor = done.cpu()
        return result

    return call


@contextmanager
def tiled(module: nn.Module, size: int | None) -> Iterator[str]:
    """While inside, diffusers tiles, by its defaults or in tiles of `size` pixels.

    Tiles of `size` overlap as much, for their size, as those of the defaults. Gives the words for
    what is done.
    """
    vae: Any = module
    before = {name: value for name, value in vars(module).items() if name.startswith("tile_")}
    vae.enable_tiling()
    try:
        for side in _SIDES:
            if side.sample in before:
                side.set(vae, size or before[side.sample], before)
        pixels = next(vars(module)[side.sample] for side in _SIDES if side.sample in before)
        yield f"tiles {pixels}x{pixels}"
    finally:
        vae.disable_tiling()
        for name, value in before.items():
            setattr(module, name, value)


class _Side:
    """Names under which a class of diffusers keeps the size of a tile, and what goes with it."""

    def __init__(self, sample: str, with_it: str) -> None:
        self.sample = sample
        self.with_it = with_it

    def set(self, vae: Any, size: int, before: dict[str, Any]) -> None:
        """A tile of `size`; what goes with it in proportion."""
        setattr(vae, self.sample, size)
        setattr(vae, self.with_it, before[self.with_it] * size // before[self.sample])


_SIDES = (
    _Side("tile_sample_min_size", "tile_latent_min_size"),
    _Side("tile_sample_min_height", "tile_sample_stride_height"),
    _Side("tile_sample_min_width", "tile_sample_stride_width"),
)
