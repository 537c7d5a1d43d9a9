"""Steps of a denoiser: its inputs, how long they take, their bits, and the work of our hooks."""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from tightfit.adapters import call_of
from tightfit.adapters.parts import DENOISE, Part
from tightfit.card import Card
from tightfit.plan.size import Size

WARM, LEAST, MOST = 3, 3, 8
"""Steps that do not count, and the fewest and most that do."""
_SECONDS = 8.0
_OURS = "tightfit."
_TURNS = 16
"""Hooks between two waits for the card: some hundred operators, a fraction of what it queues."""


@dataclass(frozen=True)
class Inputs:
    """What every step is given, by name, on the card."""

    values: dict[str, Any]

    def into(self, module: nn.Module) -> Callable[[], torch.Tensor]:
        """A step: the same values each time."""

        def step() -> torch.Tensor:
            with torch.no_grad():
                result: torch.Tensor = module(**self.values)[0]
            return result

        return step


@dataclass(frozen=True)
class Timed:
    """Steps that were run.

    Attributes:
        first: seconds of the first one, the host waiting for it.
        seconds: of those that count, one after another without a stop between.
        early, late: the results of the first and of the last step, on the host.
    """

    first: float
    seconds: tuple[float, ...]
    early: torch.Tensor
    late: torch.Tensor

    @property
    def typical(self) -> float:
        """The median."""
        return median(self.seconds)


class _Catcher(nn.Module):
    """Stands where the network does, and keeps what it would be called with."""

    def __init__(self, outline: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.config = outline.config
        self._names = inspect.signature(outline.forward)
        self.anchor = nn.Parameter(torch.empty(1, device=device), requires_grad=False)

    def forward(self, *args: Any, **kwargs: Any) -> Inputs:
        return Inputs(dict(self._names.bind(*args, **kwargs).arguments))


def inputs_of(
    part: Part, outline: nn.Module, size: Size, *, dtype: torch.dtype, device: torch.device
) -> Inputs:
    """The same values in every process, made on the host and moved to `device` once."""
    catcher = _Catcher(outline, device)
    caught = call_of(part, catcher, DENOISE, size, dtype=dtype)()
    assert isinstance(caught, Inputs)
    return caught


def timed(card: Card, step: Callable[[], torch.Tensor]) -> Timed:
    """Warm up, then as many steps as a few seconds hold, timed by the card's own clock."""
    card.sync()
    start = time.perf_counter()
    early = step()
    card.sync()
    first = time.perf_counter() - start
    early = early.cpu()
    for _ in range(WARM - 1):
        card.sync()
        start = time.perf_counter()
        step()
        card.sync()
    warm = max(time.perf_counter() - start, 1e-6)
    count = min(MOST, max(LEAST, int(_SECONDS / warm)))
    run = _by_events if card.kind == "cuda" else _by_the_host
    seconds, late = run(card, step, count)
    return Timed(first, tuple(seconds), early, late.cpu())


def digest(tensor: torch.Tensor) -> str:
    """Of the bytes of a tensor on the host."""
    raw = tensor.contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(raw.tobytes()).hexdigest()[:16]


def same_bits(result: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether two results on the host are the same in every bit."""
    if result.shape != wanted.shape or result.dtype != wanted.dtype:
        return False
    one, two = (each.contiguous().flatten().view(torch.uint8) for each in (result, wanted))
    return torch.equal(one, two)


def rms(result: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative root of the mean square of the difference."""
    one, two = result.double(), wanted.double()
    return float((one - two).norm() / two.norm())


def host_seconds(card: Card, module: nn.Module, step: Callable[[], torch.Tensor]) -> float:
    """Of our own code in one step: all hooks, and whatever lies around the network's call.

    The card is waited for at every few of them, so that its queue is never full, which would be
    counted as work; not at each, since whatever is queued on an idle card takes several times as
    long. Layers within a streamed block look whether they are called from there, which is not in
    it: a timer around each would take longer than what it times, under a microsecond.
    """
    spent = [0.0]
    with _hooks_timed(card, module, spent), _forward_timed(card, module) as inside:
        card.sync()
        start = time.perf_counter()
        step()
        around = time.perf_counter() - start - inside[0]
        card.sync()
    return max(0.0, around) + spent[0]


def _by_events(
    card: Card, step: Callable[[], torch.Tensor], count: int
) -> tuple[list[float], torch.Tensor]:
    make: Any = torch.cuda.Event
    marks = [make(enable_timing=True) for _ in range(count + 1)]
    card.sync()
    marks[0].record()
    for mark in marks[1:]:
        result = step()
        mark.record()
    card.sync()
    return [float(one.elapsed_time(two)) / 1000 for one, two in itertools.pairwise(marks)], result


def _by_the_host(
    card: Card, step: Callable[[], torch.Tensor], count: int
) -> tuple[list[float], torch.Tensor]:
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        result = step()
        card.sync()
        seconds.append(time.perf_counter() - start)
    return seconds, result


@contextmanager
def _hooks_timed(card: Card, module: nn.Module, spent: list[float]) -> Iterator[None]:
    """While inside, `spent` grows by the seconds of our hooks below `module`; its own are around
    its call, and counted there."""
    changed: list[tuple[dict[int, Any], int, Any]] = []
    turns = itertools.count()
    try:
        for part in module.modules():
            tables: list[Any] = [part._forward_pre_hooks, part._forward_hooks]
            for table in () if part is module else tables:
                for key, hook in list(table.items()):
                    if str(getattr(hook, "__module__", "")).startswith(_OURS):
                        changed.append((table, key, hook))
                        table[key] = _measuring(hook, card, spent, turns)
        yield
    finally:
        for table, key, hook in changed:
            if key in table:
                table[key] = hook


def _measuring(
    hook: Callable[..., Any], card: Card, spent: list[float], turns: Iterator[int]
) -> Callable[..., Any]:
    def measured(*args: Any, **kwargs: Any) -> Any:
        if next(turns) % _TURNS == 0:
            card.sync()
        start = time.perf_counter()
        try:
            return hook(*args, **kwargs)
        finally:
            spent[0] += time.perf_counter() - start

    return measured


@contextmanager
def _forward_timed(card: Card, module: nn.Module) -> Iterator[list[float]]:
    """While inside, what the network itself computes is timed, its queue emptied at the end."""
    inside = [0.0]
    before = vars(module).get("forward")
    plain = module.forward

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            result = plain(*args, **kwargs)
            card.sync()
            return result
        finally:
            inside[0] += time.perf_counter() - start

    vars(module)["forward"] = forward
    try:
        yield inside
    finally:
        if before is None:
            vars(module).pop("forward", None)
        else:
            vars(module)["forward"] = before
