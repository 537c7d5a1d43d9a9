"""What leak tests stand on: a card, a module of somebody's program, and a tensor to plant in it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from tightfit.card.virtual.card import VirtualCard
from tightfit.units import MIB
from tightfit.watch.leaks import Found, Leak, Moment, Scope, look, what_stayed

NAME = "mypkg.state"
END = "Tensor [512, 512] float32, 1.0 MiB"


def big(card: VirtualCard) -> torch.Tensor:
    """1 MiB on the card."""
    return torch.zeros(512, 512, device=card.device)


@contextmanager
def program() -> Iterator[Any]:
    """A module that is loaded while inside."""
    module = ModuleType(NAME)
    sys.modules[NAME] = module
    try:
        yield module
    finally:
        del sys.modules[NAME]


@contextmanager
def uncollected() -> Iterator[None]:
    """Cycles stay until the end."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


def before(card: VirtualCard) -> Moment:
    """The first moment."""
    return look(Scope((card,)))


def the_leak(found: Found) -> Leak:
    """The only one."""
    assert len(found.leaks) == 1, found.lines()
    return found.leaks[0]


def one(first: Moment, size: int = MIB) -> Leak:
    """The only thing that stayed since, of that many bytes."""
    leak = the_leak(what_stayed(first))
    assert leak.bytes == size
    assert leak.chain[-1]
    return leak
