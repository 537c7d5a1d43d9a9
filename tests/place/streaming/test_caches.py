"""What methods remember."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tightfit.place.streaming.caches import forget_cached


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cached within a function of its own, as libraries do it."""
    cached = functools.cache(function)

    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return cached(*args)

    return inner


class Above(nn.Module):
    @wrapped
    def wave(self, length: int) -> torch.Tensor:
        return torch.arange(length).sin()


class Tables(Above):
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def table(self, length: int) -> torch.Tensor:
        return torch.arange(length)


def test_tables_are_forgotten_and_made_anew() -> None:
    """Of any part, of the classes above it, cached plainly or within another function."""
    inside = Tables()
    module = nn.Sequential(nn.Identity(), nn.Sequential(inside))
    before = inside.table(5), inside.wave(5)
    assert inside.table(5) is before[0]
    assert inside.wave(5) is before[1]
    forget_cached(module)
    after = inside.table(5), inside.wave(5)
    assert after[0] is not before[0]
    assert after[1] is not before[1]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
