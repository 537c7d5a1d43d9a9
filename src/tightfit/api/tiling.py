"""`tiled`: any network made of convolutions, on the memory there is."""

from __future__ import annotations

import torch
from torch import nn

from tightfit.api.memory import open_memory
from tightfit.card import Card
from tightfit.errors import UsageError
from tightfit.run.convolutional import (
    ConvolutionalJob,
    Shape,
    as_vae,
    check_source,
    shape_of,
)
from tightfit.run.job import Request
from tightfit.run.outcome import Outcome
from tightfit.run.vae import Traits


def tiled(
    module: nn.Module,
    *,
    tile: str | int = "auto",
    card: str | Card | None = None,
    vram: str | int | None = None,
    reserve: str | int | None = None,
    allow_cpu: bool = False,
) -> Tiled:
    """A callable that runs `module` on inputs of any size, within the memory there is.

    For upscalers, denoisers and the like: [B,C,L], [B,C,H,W] or [B,C,T,H,W] to a result of any
    number of channels, larger, smaller or cut at its borders. What the sizes mean and how far
    positions reach is measured at the first call; tiles overlap by just that, so that results
    differ from the whole by rounding alone.

    Args:
        module: its weights are on the host between calls, or wherever they were.
        tile: ``auto`` runs whole what fits; ``off`` never tiles; a size forces tiles of so many
            positions of the input, as ``256`` or ``192x256``.
        card, vram, reserve, allow_cpu: the memory options.

    Raises `UsageError` at the first call where `module` cannot be put together from tiles (norms
    over the whole input, attention), and `MemoryShortage` where not even small ones fit.
    """
    return Tiled(module, tile=tile, card=card, vram=vram, reserve=reserve, allow_cpu=allow_cpu)


class Tiled:
    """What `tiled` gives: call it with a tensor [B,C,…] on any device; the result is there too.

    Attributes:
        module: what is run.
        outcome: of the last call: which way it went, its peaks, its attempts; None before it.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        tile: str | int = "auto",
        card: str | Card | None = None,
        vram: str | int | None = None,
        reserve: str | int | None = None,
        allow_cpu: bool = False,
    ) -> None:
        self.module = module
        self.outcome: Outcome | None = None
        self._memory = open_memory(
            card=card, vram=vram, reserve=reserve, tile=str(tile), allow_cpu=allow_cpu
        )
        self._shapes: dict[tuple[int, int], Shape] = {}

    def __call__(self, source: torch.Tensor) -> torch.Tensor:
        """The result of `module` for `source`, [B,C,…] with one, two or three axes."""
        axes = source.dim() - 2
        if not 1 <= axes <= 3 or 0 in source.shape:
            raise UsageError(
                f"`{type(self.module).__name__}` is given {list(source.shape)}: use [B,C,L], "
                "[B,C,H,W] or [B,C,T,H,W], each 1 or more."
            )
        shape = self.shape(source.shape[1], axes)
        memory = self._memory
        traits = Traits(
            type(self.module).__name__,
            1,
            axes=axes,
            channels=shape.channels,
            latent_channels=source.shape[1],
        )
        request = Request(
            memory.budget, memory.reserve, memory.wish, memory.estimate, allow_cpu=memory.allow_cpu
        )
        job = ConvolutionalJob(
            as_vae(self.module, traits), "decode", memory.card, request, shape=shape
        )
        check_source(source, shape, job)
        self.outcome = job.run(source.detach().to("cpu"))
        return self.outcome.value.to(source.device)

    def shape(self, channels: int, axes: int) -> Shape:
        """What was measured for inputs of so many channels and axes; measured when first asked."""
        key = (channels, axes)
        if key not in self._shapes:
            self._shapes[key] = shape_of(self.module, channels=channels, axes=axes)
        return self._shapes[key]
