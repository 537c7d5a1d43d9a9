"""Calls that are timed, with what they take of the card and of the host."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Any

import psutil
import torch

from tightfit.card import Card
from tightfit.card.polling import polled

CALLS = 3
"""That are timed after a first one."""
_LONG = 8.0
"""Of a peer that takes so many seconds, the first call counts alone; of us, one after it."""
_LOOK = 0.01


@dataclass(frozen=True)
class Timed:
    """What came of calling something several times.

    Attributes:
        value: of the last call.
        first_value, first: what the first call gave, and its seconds.
        seconds: of each call that counts.
        allocated, reserved: the most of the card while they ran.
        host: bytes that the process grew by while they ran, the result included.
    """

    value: torch.Tensor
    first_value: Any
    first: float
    seconds: tuple[float, ...]
    allocated: int | None
    reserved: int | None
    host: int


def timed(
    card: Card,
    call: Callable[[], torch.Tensor],
    *,
    first: Callable[[], Any] | None = None,
    calls: int = CALLS,
    patient: bool = True,
) -> Timed:
    """Call `first` (else `call`) once, then `call` so many `calls`, waiting for each.

    Where the first call took long, one more counts; or where nobody is `patient`, it does itself.
    """
    gc.collect()
    card.trim()
    card.reset_peaks()
    before = highest = _resident()

    def look() -> None:
        nonlocal highest
        highest = max(highest, _resident())

    with polled(look, seconds=_LOOK):
        start = time.perf_counter()
        first_value = (first or call)()
        card.sync()
        took = time.perf_counter() - start
        if took >= _LONG and not patient:
            peaks = card.read()
            return Timed(
                first_value,
                first_value,
                took,
                (took,),
                peaks.peak_allocated,
                peaks.peak_reserved,
                highest - before,
            )
        highest = before
        seconds: list[float] = []
        value: torch.Tensor | None = None
        for _ in range(1 if took >= _LONG else calls):
            value = None  # two results at a time are not what is measured
            start = time.perf_counter()
            value = call()
            card.sync()
            seconds.append(time.perf_counter() - start)
        assert value is not None
    peaks = card.read()
    return Timed(
        value,
        first_value,
        took,
        tuple(seconds),
        peaks.peak_allocated,
        peaks.peak_reserved,
        highest - before,
    )


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Run `work` in a new thread, so that nothing which libraries keep per thread is there yet."""
    values: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            values.append(work())
        except Exception as error:
            errors.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors.pop()
    return values[0]


def _resident() -> int:
    """Bytes of this process in the host's memory; what CUDA's driver pins of it is among them."""
    return int(psutil.Process().memory_info().rss)
