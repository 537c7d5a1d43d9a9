"""The lanes of every kind of card: streams and events on CUDA, at once where there is no queue."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch

from tightfit.card.base import Card
from tightfit.card.lanes import (
    Lane,
    Mark,
    Queue,
    Stamp,
    check_copy,
    check_copy_back,
    check_copy_peer,
)
from tightfit.card.virtual.card import VirtualCard
from tightfit.card.virtual.lanes import VirtualLane, VirtualQueue
from tightfit.place.runtime import runtime_library

_TO_DEVICE = 1
"""`cudaMemcpyHostToDevice`."""
_TO_HOST = 2
"""`cudaMemcpyDeviceToHost`."""
_ROWS_FIRST = {4: torch.channels_last, 5: torch.channels_last_3d}


def open_lane(card: Card) -> Lane:
    """A new queue of copies to and from `card`: drain it before its memory goes, no more."""
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


def under_way(tensor: torch.Tensor) -> tuple[torch.Tensor, Mark]:
    """A copy of `tensor` on the host, and the mark behind which it may be read; nobody waits.

    It is queued where the card of `tensor` computes, into memory that PyTorch pins.
    """
    if tensor.device.type != "cuda":
        return tensor.to("cpu"), _HostMark()
    return tensor.to("cpu", non_blocking=True), _CudaQueue(tensor.device).mark()


class _CudaMark(Mark):
    __slots__ = ("event",)

    def __init__(self) -> None:
        make: Any = torch.cuda.Event
        self.event = make(enable_timing=False)

    def drain(self) -> None:
        self.event.synchronize()


class _CudaStamp(Stamp):
    __slots__ = ("event",)

    def __init__(self) -> None:
        make: Any = torch.cuda.Event
        self.event = make(enable_timing=True)

    def seconds_since(self, earlier: Stamp) -> float:
        if not isinstance(earlier, _CudaStamp):
            raise TypeError(f"a CUDA card has no time since a {type(earlier).__name__}")
        earlier.event.synchronize()
        self.event.synchronize()
        return float(earlier.event.elapsed_time(self.event)) / 1000


class _CudaQueue(Queue):
    """Whatever stream is current: callers may change it between two calls."""

    def __init__(self, device: torch.device) -> None:
        library: Any = torch._C
        self._device = device
        self._index = device.index
        self._current = library._cuda_getCurrentStream  # numbers; for objects PyTorch takes longer
        self._known: tuple[Any, Any] = (None, None)

    def _stream(self) -> Any:
        numbers, stream = self._known
        now = self._current(self._index)
        if now != numbers:
            stream = torch.cuda.current_stream(self._index)
            self._known = (now, stream)
        return stream

    def mark(self, *, again: Mark | None = None) -> Mark:
        mark = again if isinstance(again, _CudaMark) else _CudaMark()
        mark.event.record(self._stream())
        return mark

    def wait(self, mark: Mark) -> None:
        if not isinstance(mark, _CudaMark):
            raise TypeError(f"a CUDA queue cannot wait for a {type(mark).__name__}")
        mark.event.wait(self._stream())

    def stamp(self, *, again: Stamp | None = None) -> Stamp | None:
        stamp = again if isinstance(again, _CudaStamp) else _CudaStamp()
        stamp.event.record(self._stream())
        return stamp


class _CudaLane(_CudaQueue, Lane):
    """A stream of its own, which never waits for the default one.

    PyTorch hands out few streams, over and over; those of high priority are seldom asked for, so
    nobody else computes in this one. Copies know no priority.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        make: Any = torch.cuda.Stream
        library: Any = torch._C
        self._own = own = make(device, priority=-1)
        self._numbers = (own.stream_id, own.device_index, own.device_type)
        self._become = library._cuda_setStream
        self._device_now = library._cuda_getDevice
        self._copy = _on(device, _straight_copy(own.cuda_stream, _TO_DEVICE))
        self._copy_back = _on(device, _straight_copy(own.cuda_stream, _TO_HOST))
        self._copy_peer = _on(device, _peer_copy(own.cuda_stream, device.index))

    def _stream(self) -> Any:
        return self._own

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        check_copy(target, source, self._device)
        if self._copy is not None and _in_one_order(target, source):
            self._copy(target.data_ptr(), source.data_ptr(), target.nbytes)
        else:
            self._by_torch(target, source, waits=False)

    def copy_back(self, target: torch.Tensor, source: torch.Tensor) -> None:
        check_copy_back(target, source, self._device)
        in_order = _in_one_order(target, source)
        if self._copy_back is not None and in_order:
            # To memory that is not pinned, the driver returns when the bytes are there.
            self._copy_back(target.data_ptr(), source.data_ptr(), target.nbytes)
        else:
            self._by_torch(target, source, waits=not (in_order and target.is_pinned()))

    def copy_peer(self, target: torch.Tensor, source: torch.Tensor) -> None:
        check_copy_peer(target, source, self._device)
        if self._copy_peer is None:  # by the other card's stream, as PyTorch has it
            self._by_torch(target, source, waits=False)
            return
        size, index = target.nbytes, source.device.index
        self._copy_peer(target.data_ptr(), source.data_ptr(), size, index)

    def _by_torch(self, target: torch.Tensor, source: torch.Tensor, *, waits: bool) -> None:
        if self._device_now() != self._index:
            with torch.cuda.stream(self._own):
                target.copy_(source, non_blocking=not waits)
            return
        before = self._current(self._index)
        try:  # as above, in a third of the time: no other device has to be put back
            self._switch(self._numbers)
            target.copy_(source, non_blocking=not waits)
        finally:
            self._switch(before)

    def drain(self) -> None:
        self._own.synchronize()

    def _switch(self, numbers: tuple[int, int, int]) -> None:
        stream, device, kind = numbers
        self._become(stream_id=stream, device_index=device, device_type=kind)


def _in_one_order(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the bytes of two tensors of one shape lie without gaps, in the same order."""
    if one.is_contiguous() and other.is_contiguous():
        return True
    rows_first = _ROWS_FIRST.get(one.dim())
    return (
        rows_first is not None
        and one.is_contiguous(memory_format=rows_first)
        and other.is_contiguous(memory_format=rows_first)
    )


def _on(device: torch.device, copy: Callable[..., None] | None) -> Callable[..., None] | None:
    """`copy` with `device` as the current one: the runtime makes a context on whichever that is."""
    if copy is None:
        return None
    library: Any = torch._C
    index, now = device.index, library._cuda_getDevice

    def there(*given: int) -> None:
        if now() == index:
            copy(*given)
            return
        with torch.cuda.device(device):
            copy(*given)

    return there


def _straight_copy(stream: int, way: int) -> Callable[[int, int, int], None] | None:
    """Queues a copy this `way` in `stream`, by addresses and size; None where that is not known.

    PyTorch's own takes three times as long: it looks at both tensors, and changes its stream.
    """
    runtime = runtime_library()
    if runtime is None:
        return None
    queue = runtime.cudaMemcpyAsync
    queue.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    queue.restype = ctypes.c_int

    def copy(target: int, source: int, size: int) -> None:
        failed = queue(target, source, size, way, stream)
        if failed:
            runtime.cudaGetLastError()  # else the next kernel check would raise it again
            to = "card" if way == _TO_DEVICE else "host"
            raise RuntimeError(f"CUDA error: a copy to the {to} was refused (code {failed})")

    return copy


def _peer_copy(stream: int, device: int) -> Callable[[int, int, int, int], None] | None:
    """Queues a copy to `device` in `stream`, by addresses, size and the number of the other card.

    PyTorch would queue it in the stream of that card, behind whatever is computed there. Where the
    two cannot reach one another, the driver copies through the host. None where there is no
    runtime library.
    """
    runtime = runtime_library()
    if runtime is None:
        return None
    queue = runtime.cudaMemcpyPeerAsync
    queue.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]
    queue.restype = ctypes.c_int

    def copy(target: int, source: int, size: int, other: int) -> None:
        failed = queue(target, device, source, other, size, stream)
        if failed:
            runtime.cudaGetLastError()  # else the next kernel check would raise it again
            raise RuntimeError(f"CUDA error: a copy from cuda:{other} was refused (code {failed})")

    return copy


class _HostMark(Mark):
    __slots__ = ()

    def drain(self) -> None:
        """Everything is done when it was asked for."""


class _HostStamp(Stamp):
    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = time.perf_counter()

    def seconds_since(self, earlier: Stamp) -> float:
        if not isinstance(earlier, _HostStamp):
            raise TypeError(f"the host has no time since a {type(earlier).__name__}")
        return self.at - earlier.at


class _HostQueue(Queue):
    def mark(self, *, again: Mark | None = None) -> Mark:
        return again or _HostMark()

    def wait(self, mark: Mark) -> None:
        del mark

    def stamp(self, *, again: Stamp | None = None) -> Stamp | None:
        del again
        return _HostStamp()


class _HostLane(_HostQueue, Lane):
    """Copies at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        check_copy(target, source, self._device)
        target.copy_(source)

    def copy_back(self, target: torch.Tensor, source: torch.Tensor) -> None:
        check_copy_back(target, source, self._device)
        target.copy_(source)

    def drain(self) -> None:
        """Nothing is under way."""
