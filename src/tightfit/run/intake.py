"""What a job codes, on its way to the card: kept as it was read, widened there, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol, Self

import torch

from tightfit.run.framing import TOPS, Padding
from tightfit.run.vae import Traits

_AT_ONCE = 2**21
"""Samples that are widened together: what that takes of a card goes before the network runs."""

Wait = Callable[[int], int]
"""Returns, when so many frames are there, how many are; raises what ends the reading before."""
Fill = Callable[[int | None], None]
"""Fills an input so far: by frames, by items for a VAE of pictures; None is all of it."""


def is_whole(count: int | None) -> None:
    """The `Fill` of an input that is all there."""
    del count


@dataclass(frozen=True, eq=False)
class Feed:
    """An input where it is coded.

    Attributes:
        tensor: [B,C,…]; what is not filled yet holds anything.
        fill: fills it.
    """

    tensor: torch.Tensor
    fill: Fill = is_whole


class Intake(Protocol):
    """An input of a job.

    Attributes:
        shape: [B,C,…]. dtype: what the VAE takes. nbytes: of all of it in that.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def nbytes(self) -> int: ...

    def to(self, dtype: torch.dtype) -> Self:
        """The same in another dtype."""

    def feed(self, device: torch.device) -> Feed:
        """On `device`, to be filled."""

    def on_host(self) -> torch.Tensor:
        """All of it, made once."""


class Given:
    """A host tensor that is all there, in the dtype of the VAE."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    @property
    def shape(self) -> tuple[int, ...]:
        """[B,C,…]."""
        return tuple(self._values.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self._values.dtype

    @property
    def nbytes(self) -> int:
        """Of the values."""
        return self._values.nbytes

    def to(self, dtype: torch.dtype) -> Given:
        """Cast at once."""
        return Given(self._values.to(dtype))

    def feed(self, device: torch.device) -> Feed:
        """A copy, unless it lies there."""
        return Feed(self._values.to(device))

    def on_host(self) -> torch.Tensor:
        """The tensor itself."""
        return self._values


@dataclass(eq=False)
class FrameIntake:
    """Frames [T,3,H,W] for a VAE of `traits`, as `to_source` and a cast give them, to the bit.

    Integers go to the card as they are, and become floats there. Frames may still be on their way
    when a job begins.

    Attributes:
        frames: float in 0..1, uint8 or uint16, on the host.
        traits: of the VAE.
        padding: of these frames.
        dtype: what the VAE takes.
        wait: is called before frames are read; None where all are there.
    """

    frames: torch.Tensor
    traits: Traits
    padding: Padding
    dtype: torch.dtype = torch.float32
    wait: Wait | None = None
    _on_host: Feed | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """[1,3,T',H',W'] for a VAE of clips, else [T,3,H',W']."""
        count, channels, height, width = self.frames.shape
        height, width = height + self.padding.bottom, width + self.padding.right
        if self.traits.axes == 3:
            return 1, channels, self._kept() + self.padding.frames, height, width
        return count, channels, height, width

    @property
    def nbytes(self) -> int:
        """In the dtype of the VAE."""
        return prod(self.shape) * self.dtype.itemsize

    def to(self, dtype: torch.dtype) -> FrameIntake:
        """The same in another dtype; nothing is computed."""
        return replace(self, dtype=dtype, _on_host=None)

    def feed(self, device: torch.device) -> Feed:
        """A tensor of its own there, which is filled in order, and once; one alone on the host."""
        if device.type != "cpu":
            return self._feed(device)
        if self._on_host is None:
            self._on_host = self._feed(device)
        return self._on_host

    def _feed(self, device: torch.device) -> Feed:
        tensor = torch.empty(self.shape, dtype=self.dtype, device=device)
        laid = 0
        rows = tensor[0].transpose(0, 1) if self.traits.axes == 3 else tensor

        def fill(count: int | None) -> None:
            nonlocal laid
            end = len(rows) if count is None else min(count, len(rows))
            if end > laid:
                laid = self._lay(rows, laid, end)

        return Feed(tensor, fill)

    def on_host(self) -> torch.Tensor:
        """All of it, in the dtype of the VAE."""
        made = self.feed(torch.device("cpu"))
        made.fill(None)
        return made.tensor

    def _kept(self) -> int:
        return len(self.frames) - self.padding.dropped

    def _lay(self, rows: torch.Tensor, start: int, end: int) -> int:
        """Fill `rows` [T',3,H',W'] from `start` to `end`, or as far as frames are there; how far.

        Behind the last frame it is repeated.
        """
        kept = self._kept()
        there = kept if self.wait is None else min(kept, self.wait(min(end, kept)))
        for first, last in _spans(start, there, prod(rows.shape[1:])):
            part = _widened_edges(self.frames[first:last], self.padding)
            for top, bottom in _spans(0, part.shape[-2], prod(part.shape) // part.shape[-2]):
                made = self._made(part[:, :, top:bottom], rows.device)
                rows[first:last, :, top:bottom].copy_(made)
        if there < kept:
            return there
        for row in range(max(start, kept), len(rows)):
            rows[row].copy_(rows[kept - 1])
        return len(rows)

    def _made(self, part: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A part in the VAE's range and dtype, on `device` where it was integers."""
        top = TOPS.get(part.dtype)
        if top is None:
            values = part.to(torch.float32, copy=True)
        elif part.dtype == torch.uint16:
            # No device computes with it: it goes as bits.
            bits = part.contiguous().view(torch.int16).to(device)
            values = bits.to(torch.int32).bitwise_and_(top).to(torch.float32)
        else:
            values = part.to(device).to(torch.float32)
        if top is not None:
            # By a number, cards multiply by its reciprocal, which rounds twice.
            values.div_(torch.full((), float(top), device=device))
        low, high = self.traits.low, self.traits.high
        return values.mul_(high - low).add_(low).to(self.dtype)


def _spans(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """From `start` to `end`, so many at once as hold `_AT_ONCE` samples; one has `size`."""
    step = max(1, _AT_ONCE // size)
    for first in range(start, end, step):
        yield first, min(first + step, end)


def _widened_edges(part: torch.Tensor, padding: Padding) -> torch.Tensor:
    """Frames with their last row and column repeated."""
    if not (padding.bottom or padding.right):
        return part
    *lead, height, width = part.shape
    made = part.new_empty((*lead, height + padding.bottom, width + padding.right))
    made[..., :height, :width] = part
    made[..., :height, width:] = part[..., -1:]
    made[..., height:, :] = made[..., height - 1 : height, :]
    return made
