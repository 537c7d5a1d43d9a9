"""How fast host memory reaches a card: measured with real copies, briefly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tightfit.units import MIB, format_bytes

MOST_BYTES = 256 * MIB
_LEAST_BYTES = MIB
_SHARE_OF_FREE = 8
_WARM_UP = 1
_PINNED_COPIES = 8
_PAGEABLE_COPIES = 2


@dataclass(frozen=True)
class LinkRates:
    """Host to card; bytes per second, None where it was not measured.

    Attributes:
        pinned: from memory that the driver holds in place, as streaming uses it.
        pageable: from any other memory.
        about: what was copied, or why nothing was, for people.
    """

    pinned: int | None
    pageable: int | None
    about: str


def measure_peer(
    device: torch.device, other: torch.device, *, free: int | None, most: int = MOST_BYTES
) -> tuple[int | None, str]:
    """Bytes a second from `other` to `device`, two CUDA devices, and what was copied, for people.

    The first copy lets the two reach one another, where they can; else copies go through the host,
    and that is what is measured. `free` is of the card with less room. As `measure_link`, nothing
    is raised, and what was taken stays in the caches.
    """
    if device.type != "cuda" or other.type != "cuda":
        return None, "not measured: these are no two CUDA devices"
    size = most if free is None else min(most, free // _SHARE_OF_FREE)
    if size < _LEAST_BYTES:
        return None, "not measured: a card is full"
    reach: Any = torch.cuda.can_device_access_peer
    try:
        target = torch.empty(size, dtype=torch.uint8, device=device)
        source = torch.ones(size, dtype=torch.uint8, device=other)
        way = "directly" if reach(device, other) else "through the host"
        copy = lambda: target.copy_(source, non_blocking=True)  # noqa: E731
        rate = _rate(copy, size, other, _PINNED_COPIES)
    except (RuntimeError, AssertionError) as error:
        return None, f"not measured: {_first_line(error)}"
    return rate, f"copies of {format_bytes(size)}, {way}"


def measure_link(device: torch.device, *, free: int | None, most: int = MOST_BYTES) -> LinkRates:
    """Copy at most `most` bytes, and at most an eighth of `free`, to `device` several times.

    Some hundred milliseconds on a slow link. Only a CUDA device has one; what cannot be measured
    is None and said, and nothing is raised. What was taken of the card stays in its cache: trim it.
    """
    if device.type != "cuda":
        return LinkRates(None, None, "not measured: no link lies between the host and this card")
    size = most if free is None else min(most, free // _SHARE_OF_FREE)
    if size < _LEAST_BYTES:
        return LinkRates(None, None, "not measured: the card is full")
    about = f"copies of {format_bytes(size)}"
    pageable: int | None = None
    try:
        with torch.cuda.device(device):  # memory is pinned by way of the current one
            target = torch.empty(size, dtype=torch.uint8, device=device)
            source = torch.ones(size, dtype=torch.uint8)
            pageable = _rate(lambda: target.copy_(source), size, device, _PAGEABLE_COPIES)
            held = source.pin_memory()
            copy = lambda: target.copy_(held, non_blocking=True)  # noqa: E731
            pinned = _rate(copy, size, device, _PINNED_COPIES)
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
        failed = "not measured" if pageable is None else "memory cannot be pinned"
        return LinkRates(None, pageable, f"{failed}: {_first_line(error)}")
    return LinkRates(pinned, pageable, about)


def _rate(copy: Callable[[], object], size: int, device: torch.device, copies: int) -> int:
    """Bytes per second by the device's own clock, after a copy that does not count."""
    with torch.cuda.device(device):
        event: Any = torch.cuda.Event
        started, ended = event(enable_timing=True), event(enable_timing=True)
        for _ in range(_WARM_UP):
            copy()
        torch.cuda.synchronize(device)
        started.record()
        for _ in range(copies):
            copy()
        ended.record()
        torch.cuda.synchronize(device)
    milliseconds = max(float(started.elapsed_time(ended)), 1e-6)
    return int(size * copies * 1000 / milliseconds)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
