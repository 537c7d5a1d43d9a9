"""Who touched which bytes of one storage of a virtual card."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tightfit.card.virtual.pending import Back

Span = tuple[int, int]
"""Bytes of a storage, or of the host: [first, end)."""


class Uses:
    """Who touched one storage last, by span; what is in the past of a later copy is dropped.

    Attributes:
        reads: by compute: when, and what for.
        writes: likewise.
        copies: by lanes: when, by span and number of the lane.
        backs: copies back to the host, likewise.
        computed: when compute last worked its values out of others on the card; 0 is never.
    """

    __slots__ = ("backs", "computed", "copies", "reads", "writes")

    def __init__(self) -> None:
        self.reads: dict[Span, tuple[int, str]] = {}
        self.writes: dict[Span, tuple[int, str]] = {}
        self.copies: dict[tuple[Span, int], int] = {}
        self.backs: dict[tuple[Span, int], Back] = {}
        self.computed = 0

    def copied(self, span: Span) -> bool:
        """Whether a lane has copied to bytes of it."""
        return any(overlap(other, span) for other, _ in self.copies)

    def forget(self, span: Span) -> None:
        """What lies inside `span` is in the past of its new copy, or was reported."""
        self.reads = {each: use for each, use in self.reads.items() if not within(each, span)}
        self.writes = {each: use for each, use in self.writes.items() if not within(each, span)}
        self.copies = {at: when for at, when in self.copies.items() if not within(at[0], span)}
        self.backs = {at: each for at, each in self.backs.items() if not within(at[0], span)}


def span_of(tensor: torch.Tensor) -> Span:
    """From its first byte to behind its last: gaps of a strided view count as its own."""
    first = int(tensor.storage_offset()) * tensor.element_size()
    if tensor.numel() == 0:
        return first, first
    steps: int = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return first, first + (steps + 1) * tensor.element_size()


def place_of(tensor: torch.Tensor) -> Span:
    """Where the bytes of a host tensor lie in the memory of this process."""
    first, end = span_of(tensor)
    start = tensor.untyped_storage().data_ptr()
    return start + first, start + end


def overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def within(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
