"""What a call is made of: inputs for any device, and what the call is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tightfit.adapters.known.sizes import Grid
from tightfit.plan.size import Size

_SEED = 0


class Fill:
    """Makes inputs: seeded values on a real device, shapes alone on the meta device."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self._generator = torch.Generator()

    def restart(self) -> None:
        """The next values are the first ones again."""
        self._generator.manual_seed(_SEED)

    def noise(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal values of `shape`; made on the host, so that they are the same everywhere."""
        dtype = dtype or self.dtype
        if self.device.type == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        return torch.randn(shape, generator=self._generator).to(dtype).to(self.device)

    def ids(self, *shape: int, vocabulary: int) -> torch.Tensor:
        """Seeded random token ids."""
        return self.put(torch.randint(vocabulary, shape, generator=self._generator))

    def put(self, tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A small tensor of the host on the device."""
        return tensor.to(dtype).to(self.device) if dtype else tensor.to(self.device)

    def level(self, batch: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """How much noise is left, one number an item; near the middle of the way."""
        return self.put(torch.full((batch,), 0.5), dtype=dtype or self.dtype)


@dataclass(frozen=True)
class Ask:
    """What one call is about.

    Attributes:
        module: that is called.
        fill: makes the inputs.
        batch: items at once, the negative ones included where they run together.
        text: tokens of a prompt.
        size: of the job, cast.
        grid: how pixels become tokens, of a denoiser.
    """

    module: Any
    fill: Fill
    batch: int
    text: int
    size: Size
    grid: Grid | None = None

    @property
    def config(self) -> Any:
        """Of the module."""
        return self.module.config

    @property
    def latent(self) -> tuple[int, int, int]:
        """Latent frames, height and width."""
        assert self.grid is not None
        return self.grid.latent(self.size)

    @property
    def tokens(self) -> tuple[int, int, int]:
        """Tokens in time, height and width."""
        assert self.grid is not None
        return self.grid.tokens(self.size)

    def prompt(self, width: int) -> torch.Tensor:
        """Encoded prompts, [B,text,width]."""
        return self.fill.noise(self.batch, self.text, width)
