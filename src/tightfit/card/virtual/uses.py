"""Who touched which bytes of one storage of a virtual card."""

from __future__ import annotations

import torch

Span = tuple[int, int]
"""Bytes of a storage: [first, end)."""


class Uses:
    """Who touched one storage last, by span; what is in the past of a later copy is dropped.

    Attributes:
        reads: by compute: when, and what for.
        writes: likewise.
        copies: by lanes: when, by span and number of the lane.
        computed: when compute last worked its values out of others on the card; 0 is never.
    """

    __slots__ = ("computed", "copies", "reads", "writes")

    def __init__(self) -> None:
        self.reads: dict[Span, tuple[int, str]] = {}
        self.writes: dict[Span, tuple[int, str]] = {}
        self.copies: dict[tuple[Span, int], int] = {}
        self.computed = 0

    def forget(self, span: Span) -> None:
        """What lies inside `span` is in the past of its new copy, or was reported."""
        self.reads = {each: use for each, use in self.reads.items() if not _within(each, span)}
        self.writes = {each: use for each, use in self.writes.items() if not _within(each, span)}
        self.copies = {at: when for at, when in self.copies.items() if not _within(at[0], span)}


def span_of(tensor: torch.Tensor) -> Span:
    """From its first byte to behind its last: gaps of a strided view count as its own."""
    first = int(tensor.storage_offset()) * tensor.element_size()
    if tensor.numel() == 0:
        return first, first
    steps: int = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return first, first + (steps + 1) * tensor.element_size()


def overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _within(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
