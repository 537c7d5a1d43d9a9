"""Blocks of the caching allocator, as PyTorch tells them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.cases.common import virtual
from tightfit.card.blocks import WORKSPACES, Block, blocks_of


def _segment(device: int, address: int, *blocks: tuple[int, str, int]) -> dict[str, Any]:
    return {
        "device": device,
        "address": address,
        "blocks": [
            {"size": size, "state": state, "requested_size": asked} for size, state, asked in blocks
        ],
    }


def test_what_is_held_is_told_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this device alone; what is free, or waits for a stream, is passed over."""
    (workspace, _) = sorted(WORKSPACES)
    held, free, late = "active_allocated", "inactive", "active_pending_free"
    segments = [
        _segment(0, 2**21, (512, held, 500), (1024, free, 0), (2048, held, 2048)),
        _segment(1, 2**22, (512, held, 512)),
        _segment(0, 2**20, (512, late, 512), (workspace + 384, held, workspace)),
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    card = virtual("64MiB")
    monkeypatch.setattr(type(card), "kind", "cuda")
    monkeypatch.setattr(card, "allocator", "native")
    card.device = torch.device("cuda", 0)
    found = blocks_of(card)
    assert found == (
        Block(2**20 + 512, workspace + 384, workspace),
        Block(2**21, 512, 500),
        Block(2**21 + 1536, 2048, 2048),
    )
    assert [block.is_workspace for block in found] == [True, False, False]


@pytest.mark.parametrize("kind", ["native", "async"])
def test_other_allocators_tell_none(kind: str) -> None:
    """A virtual card has books of its own; cudaMallocAsync has no blocks."""
    assert blocks_of(virtual(f"64MiB,allocator={kind}")) is None
