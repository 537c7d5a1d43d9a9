"""What a call of the library gives back."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

import torch

from tightfit.media.sound import Sound
from tightfit.report.record import Report

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Result(Generic[T]):
    """The value, and the report on how it came about."""

    value: T
    report: Report

    def _repr_html_(self) -> str:
        """What notebooks show: the report; a value is shown by its own means."""
        return self.report._repr_html_()


@dataclass(frozen=True, eq=False)
class Frames:
    """Decoded frames on the host.

    Attributes:
        pixels: [N,3,H,W] in 0..1; [N,4,H,W] where the source's alpha was kept.
        fps: frames per second; None for pictures.
        sound: what is heard while they are shown, where it was kept; of a VAE of sound all there
            is, and `pixels` are [0,3,0,0].
    """

    pixels: torch.Tensor
    fps: Fraction | None = None
    sound: Sound | None = None
