"""``--allocator`` before PyTorch starts, which is the only time it can be said."""

from __future__ import annotations

import sys

from tightfit.settings import choose_allocator


def prepare(allocator: str | None, card: str | None) -> None:
    """Set the allocator of a CUDA card; a virtual card's is checked when it is opened."""
    if allocator is not None and "torch" not in sys.modules and not (card or "").startswith("v"):
        choose_allocator(allocator)
