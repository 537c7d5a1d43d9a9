"""Where the time of a step goes: computing, waiting for copies, waiting for the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tightfit.card import Card

_COPY = "Memcpy HtoD"


def where_time_goes(
    card: Card,
    step: Callable[[], torch.Tensor],
    *,
    seconds: float,
    stall: float | None,
    work: float | None,
    lift: Callable[[], object] = lambda: None,
) -> str:
    """Words for one more step in steady state, whose kernels are looked at by a profiler.

    What it took on the card is longer under a profiler, but each kernel is not. So what the card
    waited for launches is what is left of an ordinary step without kernels and waits for copies.

    Args:
        seconds: of a step, not profiled.
        stall: that it waited for copies, by the session's own trace.
        work: of our own code on the host, while the card is idle.
        lift: makes room on the card for the profiler.
    """
    card.sync()
    start = time.perf_counter()
    step()
    queued = time.perf_counter() - start
    card.sync()
    lift()
    worked = kernels(card, step)
    idle = None if worked is None or stall is None else seconds - worked - stall
    return (
        f"traced: a step of {_ms(seconds)}: kernels {_ms(worked)}, waits for copies {_ms(stall)}, "
        f"for launches {_ms(idle)}; host work {_ms(work)}, all of it queued in {_ms(queued)}"
    )


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one of (start, end) lasts."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def kernels(card: Card, step: Callable[[], torch.Tensor]) -> float | None:
    """Seconds of the card in one step, copies from the host aside; None where nobody can tell."""
    if card.kind != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        card.sync()
    return busy(seen.events() or ())


def busy(events: Iterable[Any]) -> float | None:
    """Seconds that the card worked, by what a profiler saw; None where it saw nothing there."""
    spans = [
        (float(event.time_range.start), float(event.time_range.end))
        for event in events
        if event.device_type.name == "CUDA" and not event.name.startswith(_COPY)
    ]
    return covered(spans) / 1e6 if spans else None


def _ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{1e3 * seconds:.1f} ms"
