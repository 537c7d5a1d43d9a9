"""Several tensors in one buffer, packed: which stretches of it are, and how they come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from tightfit.place.packing.codec import Recipe, decode_scratch, encode, prepared
from tightfit.place.packing.recipe import TILE, aligned

LEAST = 1 << 16
"""Bytes of a stretch below which packing it saves nothing worth a launch."""
Span = tuple[int, int, torch.dtype]
"""First byte, byte behind the last, and what lies there."""


@dataclass(frozen=True)
class Stretch:
    """Bytes [start, start + bytes) as used, and where they are stored.

    Attributes:
        start, bytes: within the buffer that tensors lie in.
        at: the first byte of what is stored for them, a multiple of 256.
        recipe: how that is read; None is that it is those bytes.
    """

    start: int
    bytes: int
    at: int
    recipe: Recipe | None

    @property
    def stored(self) -> int:
        """Bytes that are stored."""
        return self.bytes if self.recipe is None else self.recipe.bytes


@dataclass(frozen=True)
class Packed:
    """How a buffer of tensors is stored in fewer bytes.

    Attributes:
        used: bytes of the buffer that tensors lie in.
        stored: bytes of the buffer that is kept and copied instead.
        stretches: which follow one another without a gap, in both.
    """

    used: int
    stored: int
    stretches: tuple[Stretch, ...]

    @property
    def shrinks(self) -> bool:
        """Whether anything was gained."""
        return self.stored < self.used

    def unpacking(self, stored: torch.Tensor, used: torch.Tensor) -> Callable[[], None]:
        """Queues the way back on the current stream, each time it is called; nothing waits.

        Args:
            stored: bytes on a device, `self.stored` of them.
            used: bytes on the same device, at least `self.used`.
        """
        plain: list[tuple[torch.Tensor, torch.Tensor]] = []
        packed: list[Callable[[], None]] = []
        for each in self.stretches:
            source = stored[each.at : each.at + each.stored]
            target = used[each.start : each.start + each.bytes]
            if each.recipe is None:
                plain.append((target, source))
            else:
                packed.append(prepared(source, each.recipe, target.view(torch.bfloat16)))

        def unpack() -> None:
            for target, source in plain:
                target.copy_(source)
            for decode in packed:
                decode()

        return unpack

    def scratch(self, device_type: str) -> int:
        """Bytes that the way back takes meanwhile on such a device, beside both buffers."""
        return max(
            (
                decode_scratch(each.recipe, device_type)
                for each in self.stretches
                if each.recipe is not None
            ),
            default=0,
        )


def scratch_for(used: int, device_type: str) -> int:
    """Bytes that unpacking to `used` bytes takes meanwhile on such a device, at most."""
    values = used // 2
    tiles = -(-values // TILE)
    recipe = Recipe.of(values, bits=12, packed=tiles, escapes=0, ordered=False, tail_raw=False)
    return decode_scratch(recipe, device_type)


def pack(used: torch.Tensor, spans: Sequence[Span]) -> tuple[Packed, list[torch.Tensor]]:
    """Pack what shrinks of the bytes `used`, on any device; what is stored, in parts.

    `spans` follow one another and cover all of it. The parts belong at the `at` of the stretches.
    """
    stretches: list[Stretch] = []
    parts: list[torch.Tensor] = []
    at = 0
    for start, end, dtype in _joined(spans):
        part = used[start:end]
        recipe = None
        if dtype == torch.bfloat16 and end - start >= LEAST:
            found = encode(part.view(torch.bfloat16))
            if found is not None:
                part, recipe = found
        stretches.append(Stretch(start, end - start, at, recipe))
        parts.append(part)
        at = aligned(at + stretches[-1].stored)
    return Packed(used.nbytes, at, tuple(stretches)), parts


def _joined(spans: Sequence[Span]) -> Iterator[Span]:
    """Neighbours of one kind as one."""
    start = end = 0
    kind: torch.dtype | None = None
    for first, last, dtype in spans:
        if dtype != kind and kind is not None and end > start:
            yield start, end, kind
            start = first
        end, kind = last, dtype
    if kind is not None and end > start:
        yield start, end, kind
