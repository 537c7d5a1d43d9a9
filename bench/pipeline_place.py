"""Where a process of `pipeline.py` runs, and what those of one model tell one another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from ballast import Ballast
from pipeline_jobs import MARGINS, OURS, Job
from pipeline_weights import Store

from tightfit.card import Card, open_card

LONG = 90.0
"""Seconds of a first call after which it counts alone."""
_FREE = "virtual:64GiB"


@dataclass(frozen=True)
class Whole:
    """What the resident row leaves for the others.

    Attributes:
        seconds: of a call.
        step: of a step, waited for.
        activations: bytes that a step takes beside weights.
        passes: calls of the denoiser in a step.
    """

    seconds: float
    step: float
    activations: int
    passes: float


@dataclass(frozen=True)
class Place:
    """Where a process runs.

    Attributes:
        ballast: makes the CUDA card small; None is that cards are virtual.
        folder: for what the processes of one model tell one another.
        store: of the weights; None is that each draws its own.
        margin: bytes that a peer which is told a budget leaves free beside activations.
    """

    ballast: Ballast | None
    folder: Path
    store: Store | None
    margin: int = MARGINS[0]

    def card(self, job: Job, who: str) -> Card:
        """A real one is free at first; a virtual one has its size from the start."""
        if self.ballast is not None:
            return open_card("cuda:0")
        return open_card(_FREE if who != OURS else f"virtual:{job.bytes}B")

    @contextmanager
    def small(self, card: Card, size: int) -> Iterator[None]:
        """While inside, `size` bytes of a CUDA card are free; its context exists before."""
        if self.ballast is None:
            yield
            return
        card.trim()
        card.sync()
        self.ballast.leave(size)
        try:
            yield
        finally:
            self.ballast.leave(None)

    def keep(self, whole: Whole) -> None:
        """Write it down."""
        (self.folder / "whole.json").write_text(json.dumps(asdict(whole)), encoding="utf-8")

    def whole(self) -> Whole | None:
        """What the resident row left; None where it did not run, or failed."""
        path = self.folder / "whole.json"
        return Whole(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


class Highest:
    """The most that a card held since this began, whoever else resets its peaks meanwhile."""

    def __init__(self, card: Card) -> None:
        """Begins now, and goes on while the process lives."""
        self._card = card
        self._reset = card.reset_peaks
        self._allocated = self._reserved = 0
        self._reset()
        vars(card)["reset_peaks"] = self._look_and_reset

    @property
    def allocated(self) -> int | None:
        """Bytes of live tensors; None where the card cannot tell."""
        now = self._card.read().peak_allocated
        return None if now is None else max(now, self._allocated)

    @property
    def reserved(self) -> int | None:
        """Bytes that the allocator had taken; None where the card cannot tell."""
        now = self._card.read().peak_reserved
        return None if now is None else max(now, self._reserved)

    def _look_and_reset(self) -> None:
        self._allocated, self._reserved = self.allocated or 0, self.reserved or 0
        self._reset()


def digest_of(tensor: torch.Tensor) -> str:
    """Of its values, wherever it is."""
    values = tensor.to("cpu").contiguous()
    return hashlib.sha256(values.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()
