"""Bytes of tensors, each byte once, however many tensors look at it."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import Any

import torch

from tightfit.weigh.packed import parts


class Tally:
    """Adds tensors up; `add` tells what each of them brought that was not there before.

    Two tensors with the same bytes (ties, views of one storage, an expanded tensor) share them.
    On the meta device storages have no address, but each is an object, and the same holds.
    """

    def __init__(self) -> None:
        self._spans: dict[Any, list[int]] = {}  # per storage: start, end, start, end, …; sorted
        self._alive: list[Any] = []  # keeps addresses from being used again

    def add(self, tensor: torch.Tensor) -> int:
        """Count `tensor` with all its parts; the bytes that are new."""
        return sum(self._add(part) for part in parts(tensor))

    def _add(self, part: torch.Tensor) -> int:
        key, start, end = _span(part)
        if start == end:
            return 0
        self._alive.append(part)
        marks = self._spans.setdefault(key, [])
        first, last = bisect_left(marks, start), bisect_right(marks, end)
        inside = marks[first:last]
        edges = [*([start] if first % 2 == 0 else []), *([end] if last % 2 == 0 else [])]
        marks[first:last] = edges
        bounds = [*([start] if first % 2 else []), *inside, *([end] if last % 2 else [])]
        known = sum(b - a for a, b in zip(bounds[::2], bounds[1::2], strict=True))
        return end - start - known


def stored_bytes(tensor: torch.Tensor) -> int:
    """Bytes that `tensor` takes where it lies: the sum of its inner storages.

    An expanded tensor takes what its storage takes; a window of a larger storage takes its own
    elements. The element size of a shell says nothing and is not asked.
    """
    return Tally().add(tensor)


def extent(part: torch.Tensor) -> tuple[Any, int, int]:
    """The storage that a plain tensor looks at, and its first and last byte there: [start, end)."""
    with torch._C.DisableTorchFunctionSubclass():
        size = part.element_size()
        if part.layout is not torch.strided:
            return id(part), 0, part.numel() * size
        storage, start = part.untyped_storage()._cdata, part.storage_offset() * size
        if part.numel() == 0:
            return storage, int(start), int(start)
        reach = sum((n - 1) * step for n, step in zip(part.shape, part.stride(), strict=True))
        return storage, int(start), int(start + size * (1 + reach))


def _span(part: torch.Tensor) -> tuple[Any, int, int]:
    """`extent`; for a window with holes, which only the same window shares, its elements alone."""
    storage, start, end = extent(part)
    with torch._C.DisableTorchFunctionSubclass():
        if part.layout is torch.strided and start < end:
            shape, strides = tuple(part.shape), part.stride()
            distinct = math.prod(n for n, stride in zip(shape, strides, strict=True) if stride)
            if distinct * part.element_size() < end - start:
                return (storage, start, shape, strides), 0, distinct * part.element_size()
    return storage, start, end
