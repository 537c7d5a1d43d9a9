"""What the caching allocator of a CUDA card has handed out, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tightfit.card.base import Card

_HELD = "active_allocated"
WORKSPACES = frozenset((2 * 4096 * 1024 + 8 * 16 * 1024, 32 * 1024 * 1024))
"""Bytes that PyTorch asks for as the workspace of cuBLAS, one for each stream that multiplies: its
own default (``:4096:2:16:8``), and that of compute capability 9.0 and later."""


@dataclass(frozen=True)
class Block:
    """Attributes:
    address: where.
    bytes: as the allocator counts them.
    asked: bytes that were asked for.
    """

    address: int
    bytes: int
    asked: int

    @property
    def is_workspace(self) -> bool:
        """Whether it may be one of cuBLAS, by its size."""
        return self.asked in WORKSPACES


def blocks_of(card: Card) -> tuple[Block, ...] | None:
    """All that somebody holds, by address; None where the allocator does not tell."""
    if card.kind != "cuda" or card.allocator == "async":
        return None
    memory: Any = torch.cuda
    found = []
    for segment in memory.memory_snapshot():
        if segment["device"] != card.device.index:
            continue
        address = int(segment["address"])
        for block in segment["blocks"]:
            size = int(block["size"])
            if block["state"] == _HELD:
                found.append(Block(address, size, int(block.get("requested_size", size))))
            address += size
    return tuple(sorted(found, key=lambda block: block.address))
