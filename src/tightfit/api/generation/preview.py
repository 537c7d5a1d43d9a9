"""A small picture of how far a job is, in a file that is whole or absent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tightfit.adapters.live.looks import Look, expected
from tightfit.api.sharing.pipelines import FittedPipeline
from tightfit.errors import TightfitError
from tightfit.media.picture_writer import write_picture

_EVERY = 1.0
"""Seconds between two pictures."""


@dataclass
class Preview:
    """What the latents of a pipeline look like on their way.

    Attributes:
        path: of the picture; one beside the other where several are made at once.
        look: what colours latents have; None where that cannot be told.
        notes: why there is none.
        every: seconds between two pictures; the last step has one.
        height, width: of what is made, in pixels; None where the pipeline chooses.
        clock: seconds.
    """

    path: Path
    look: Look | None
    notes: list[str] = field(default_factory=list)
    every: float = _EVERY
    height: int | None = None
    width: int | None = None
    clock: Callable[[], float] = time.monotonic
    _written: float | None = None

    @classmethod
    def of(cls, fitted: FittedPipeline, path: Path) -> Preview:
        """For the pipeline's VAE, which is looked at on the host; nothing of the card is taken."""
        vae = next(iter(fitted.vaes.values()), None)
        if vae is None:
            return cls(path, None, ["no preview: the pipeline has no VAE that is known here"])
        try:
            with fitted.card.alone():
                return cls(path, Look.of(vae))
        except TightfitError as error:
            return cls(path, None, [str(error)])
        except Exception as error:  # a preview never ends a job
            return cls(path, None, [f"no preview: {type(error).__name__}: {error}"])

    def show(
        self, scheduler: Any, before: torch.Tensor, after: torch.Tensor, *, last: bool
    ) -> None:
        """After a step from latents `before` to `after`, which are copied to the host.

        Where the file cannot be written, that is noted once and the job goes on.
        """
        now = self.clock()
        early = self._written is not None and now - self._written < self.every
        if self.look is None or (early and not last):
            return
        try:
            seen = self.look(
                expected(scheduler, before, after), height=self.height, width=self.width
            )
            if seen is None:
                self._give_up("no preview: the order of this pipeline's latents is not known")
                return
            write_picture(self.path, torch.cat(list(seen.nan_to_num()), dim=-1))
        except TightfitError as error:
            self._give_up(f"no preview: {error}")
            return
        self._written = self.clock()

    def _give_up(self, why: str) -> None:
        self.look = None
        self.notes.append(why)
