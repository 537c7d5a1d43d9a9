"""The lanes of every kind of card: streams and events on CUDA, at once where there is no queue."""

from __future__ import annotations

from typing import Any

import torch

from tightfit.card.base import Card
from tightfit.card.lanes import Lane, Mark, Queue, check_copy
from tightfit.card.virtual.card import VirtualCard
from tightfit.card.virtual.lanes import VirtualLane, VirtualQueue


def open_lane(card: Card) -> Lane:
    """A new queue of copies to `card`. It needs no closing: drain it before its memory goes."""
    if isinstance(card, VirtualCard):
        return VirtualLane(card)
    if card.kind == "cuda":
        return _CudaLane(card.device)
    return _HostLane(card.device)


def compute_of(card: Card) -> Queue:
    """The compute queue of `card`: on CUDA the stream that is current where it is called upon."""
    if isinstance(card, VirtualCard):
        return VirtualQueue(card)
    if card.kind == "cuda":
        return _CudaQueue(card.device)
    return _HostQueue()


class _CudaMark(Mark):
    __slots__ = ("event",)

    def __init__(self) -> None:
        make: Any = torch.cuda.Event
        self.event = make(enable_timing=False)

    def drain(self) -> None:
        self.event.synchronize()


class _CudaQueue(Queue):
    """Whatever stream is current: callers may change it between two calls."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def _stream(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def mark(self, *, again: Mark | None = None) -> Mark:
        mark = again if isinstance(again, _CudaMark) else _CudaMark()
        mark.event.record(self._stream())
        return mark

    def wait(self, mark: Mark) -> None:
        if not isinstance(mark, _CudaMark):
            raise TypeError(f"a CUDA queue cannot wait for a {type(mark).__name__}")
        self._stream().wait_event(mark.event)


class _CudaLane(_CudaQueue, Lane):
    """A stream of its own."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        make: Any = torch.cuda.Stream
        self._own = make(device)

    def _stream(self) -> Any:
        return self._own

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        check_copy(target, source, self._device)
        with torch.cuda.stream(self._own):
            target.copy_(source, non_blocking=True)

    def drain(self) -> None:
        self._own.synchronize()


class _HostMark(Mark):
    __slots__ = ()

    def drain(self) -> None:
        """Everything is done when it was asked for."""


class _HostQueue(Queue):
    def mark(self, *, again: Mark | None = None) -> Mark:
        return again or _HostMark()

    def wait(self, mark: Mark) -> None:
        del mark


class _HostLane(_HostQueue, Lane):
    """Copies at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        check_copy(target, source, self._device)
        target.copy_(source)

    def drain(self) -> None:
        """Nothing is under way."""
