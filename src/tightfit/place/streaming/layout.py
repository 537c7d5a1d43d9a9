"""Several tensors in one buffer of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

ALIGNMENT = 256
"""Bytes that each tensor starts at a multiple of, as it does when an allocator gives it."""


@dataclass(frozen=True)
class Place:
    """Where one tensor lies within a buffer.

    Attributes:
        start: its first byte.
        bytes: how many it has.
        shape, stride: in elements; dense, in the order of the original's dimensions in memory.
        dtype: of its elements.
    """

    start: int
    bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """The tensor, in a buffer of bytes on any device."""
        flat = buffer[self.start : self.start + self.bytes].view(self.dtype)
        return flat.as_strided(self.shape, self.stride)

    def is_as(self, tensor: torch.Tensor) -> bool:
        """Whether the bytes of `tensor`, which this was made for, lie in memory as they do here."""
        return all(
            size == 1 or step == wanted
            for size, step, wanted in zip(self.shape, tensor.stride(), self.stride, strict=True)
        )


@dataclass(frozen=True)
class Layout:
    """Several tensors in one buffer, each at a multiple of `ALIGNMENT`.

    Attributes:
        places: in the order of the tensors.
        bytes: what the buffer has to have.
    """

    places: tuple[Place, ...]
    bytes: int

    @classmethod
    def of(cls, tensors: Iterable[torch.Tensor]) -> Layout:
        """For plain tensors; what has gaps or repeats in memory is laid out without."""
        places: list[Place] = []
        end = 0
        for tensor in tensors:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            stride = torch.empty_like(tensor, device="meta", requires_grad=False).stride()
            places.append(Place(start, tensor.nbytes, tuple(tensor.shape), stride, tensor.dtype))
            end = start + tensor.nbytes
        return cls(tuple(places), end)

    def views(self, buffer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All tensors, in a buffer of `bytes` or more on any device."""
        return tuple(place.view(buffer) for place in self.places)
