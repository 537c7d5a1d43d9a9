"""The one piece of host memory that tensors lie in while a network is run in strips."""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections.abc import Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import torch

from tightfit.card.base import Card
from tightfit.card.host_memory import HostMemory, read_host_memory
from tightfit.errors import MemoryShortage
from tightfit.place.streaming.host_budget import host_room, pin_budget
from tightfit.place.streaming.memory import mapping
from tightfit.place.streaming.pinned import Pins
from tightfit.units import MIB, format_bytes

_LARGE_PAGE = 2 * MIB
_LEAST_PART = 64 * MIB
_MOST_THREADS = 16


class HostArena:
    """Host memory that is taken whole, before the work, and given back after it.

    Copies between it and the card keep nobody waiting where it is `pinned`; else they are the same
    copies, slower. It is closed when all of them are done, and views are of no use from then on.

    The pages of a large one take a second to come; taken `ahead`, they do so while the first strips
    run, and who needs them waits.
    """

    def __init__(
        self,
        size: int,
        card: Card,
        *,
        pin: bool | None = None,
        pins: Pins | None = None,
        memory: HostMemory | None = None,
        ahead: bool = False,
    ) -> None:
        """Take `size` bytes: all pages, so that a copy does not wait for them.

        Args:
            size: in bytes.
            card: what copies go to and come from.
            pin: whether to have it held in place; None is where copies of the card gain by it. A
                refusal is no error.
            pins: by whom; None is the driver of `card`, within `pin_budget`.
            memory: the host, if somebody has looked already.
            ahead: return before the pages are there.

        Raises:
            MemoryShortage: the host has no room for it; nothing was taken.
        """
        memory = memory or read_host_memory()
        _refuse_too_much(size, memory)
        if pins is None:
            pins = Pins.none()
            if card.kind == "cuda":
                pins = Pins.cuda(pin_budget(memory), device=card.device)
        self._pinned = False
        self._pins = pins
        self._buffer = mapping(size, what="activations", private=True)
        self._failure: BaseException | None = None
        self._coming: threading.Thread | None = None
        try:
            if ahead:
                self._coming = threading.Thread(
                    target=self._come, args=(pin,), name="tightfit activations", daemon=True
                )
                self._coming.start()
            else:
                self._take(pin)
        except BaseException:
            self.close()
            raise

    @property
    def pinned(self) -> bool:
        """Whether the driver holds it in place."""
        self._there()
        return self._pinned

    @property
    def buffer(self) -> torch.Tensor:
        """All of it, as uint8 [size]; empty once it is closed."""
        self._there()
        return self._buffer

    @property
    def bytes(self) -> int:
        """Its size; 0 once it is closed."""
        return self._buffer.nbytes

    def view(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The contiguous tensor that starts at byte `offset`; other views may share its bytes.

        Raises `ValueError` where it would not lie inside, or not at a multiple of its item size.
        """
        self._there()
        size = math.prod(shape) * dtype.itemsize
        if offset < 0 or offset % dtype.itemsize or offset + size > self.bytes:
            raise ValueError(
                f"no {tuple(shape)} {dtype} at byte {offset} of an arena of {self.bytes} bytes: "
                f"it takes {size} bytes from a multiple of {dtype.itemsize} on"
            )
        return self._buffer[offset : offset + size].view(dtype).view(tuple(shape))

    def close(self) -> None:
        """Let it go, with its last view; nothing may be under way. Harmless when repeated."""
        if self._coming is not None:
            self._coming.join()
        self._pins.release(self._buffer)
        self._pinned, self._coming, self._failure = False, None, None
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def _take(self, pin: bool | None) -> None:
        _touch(self._buffer)
        if pin is not False:
            self._pinned = self._pins.hold(self._buffer)

    def _come(self, pin: bool | None) -> None:
        try:
            self._take(pin)
        except BaseException as error:
            self._failure = error

    def _there(self) -> None:
        """All pages are; else what kept them away is raised."""
        if self._coming is not None:
            self._coming.join()
            self._coming = None
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _refuse_too_much(size: int, memory: HostMemory) -> None:
    room = host_room(memory)
    if size > room:
        raise MemoryShortage(
            f"Not enough host memory to keep {format_bytes(size)} of activations.",
            figures=f"{format_bytes(memory.available)} of {format_bytes(memory.total)} is "
            f"available, and {format_bytes(memory.available - room)} of that is left for others.",
            advice="close other programs, or a smaller size",
        )


def _touch(buffer: torch.Tensor) -> None:
    """Take every page now, by several threads: the system clears each one as it is taken."""
    start = -buffer.data_ptr() % _LARGE_PAGE
    bounds = _parts(buffer.nbytes, start, _processors())
    pages: Any = buffer.numpy()

    def touch(first: int, end: int) -> None:
        pages[first : end : mmap.PAGESIZE] = 0  # NumPy lets other threads run meanwhile

    others = [
        threading.Thread(target=touch, args=part, name="tightfit pages", daemon=True)
        for part in bounds[1:]
    ]
    begun: list[threading.Thread] = []
    try:
        for thread in others:
            thread.start()
            begun.append(thread)
        for part in bounds[:1]:
            touch(*part)
    finally:
        for thread in begun:
            thread.join()


def _parts(size: int, start: int, threads: int) -> list[tuple[int, int]]:
    """[first, end) of each thread's bytes, cut between large pages; the first one is at `start`."""
    count = max(1, min(threads, _MOST_THREADS, size // _LEAST_PART))
    step = max(1, -(-size // (count * _LARGE_PAGE))) * _LARGE_PAGE
    return list(pairwise([0, *range(start + step, size, step), size]))


def _processors() -> int:
    """Those that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
