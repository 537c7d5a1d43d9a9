"""How what is read enters a job: while it comes, or when all of it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from tightfit.api.reading import OtherLength, Reading
from tightfit.api.sources import Footage
from tightfit.api.work import Work
from tightfit.errors import Cancelled, InputError
from tightfit.run.framing import Padding, padding_of, sound_to_source
from tightfit.run.intake import FrameIntake, Given, Intake
from tightfit.run.vae import Traits

T = TypeVar("T")


class Entry:
    """Of one reading into one job.

    Attributes:
        footage, padding: what was coded; known when the job is done.
    """

    footage: Footage
    padding: Padding

    def __init__(self, reading: Reading, traits: Traits, work: Work, *, trim: bool = False) -> None:
        self._reading, self._traits, self._trim = reading, traits, trim
        self._work, self._check = work, work.watching.cancel.check
        work.before_report = self._tell

    def run(self, do: Callable[[Intake], T]) -> T:
        """`do` the job on what comes; once more where another number of frames came.

        Raises what ended the reading, and what `do` raises.
        """
        coming = None if self._traits.axes == 1 else self._reading.coming()
        if coming is not None:
            made = self._meanwhile(coming, do)
            if made:
                return made[0]
            self._work.adjusted.clear()
            self._work.warnings.clear()
        return do(self._whole())

    def _meanwhile(self, coming: torch.Tensor, do: Callable[[Intake], T]) -> list[T]:
        """The result, where as many frames came as were expected."""
        self.padding = padding_of(tuple(coming.shape), self._traits, trim=self._trim)

        def wait(count: int) -> int:
            return self._reading.frames(count, self._check)

        made: list[T] = []
        try:
            made.append(do(FrameIntake(coming, self._traits, self.padding, wait=wait)))
        except OtherLength:
            pass
        except (Cancelled, InputError):
            raise
        except Exception:
            # There may have been no room for what a header had made up.
            if len(self._reading.footage(self._check).frames) == len(coming):
                raise
        self.footage = self._reading.footage(self._check)
        return made if len(self.footage.frames) == len(coming) else []

    def _whole(self) -> Intake:
        self.footage = footage = self._reading.footage(self._check)
        traits = self._traits
        if traits.axes == 1:
            assert footage.sound is not None
            samples, added = sound_to_source(footage.sound.samples, traits)
            self.padding = Padding(right=added)
            return Given(samples)
        self.padding = padding_of(tuple(footage.frames.shape), traits, trim=self._trim)
        return FrameIntake(footage.frames, traits, self.padding)

    def _tell(self) -> None:
        """The job's report says what was read, and what was done to it."""
        footage, padding = self._reading.footage(self._check), self.padding
        notes = [*footage.notes]
        count, _, height, width = footage.frames.shape
        if padding.frames:
            notes.append(
                f"padded {count} frames to {count + padding.frames}, trimmed back after decoding"
            )
        if padding.dropped:
            notes.append(f"left out {padding.dropped} frames at the end")
        if self._traits.axes == 1 and padding.right:
            notes.append(f"padded by {padding.right} samples, trimmed back after decoding")
        elif padding.bottom or padding.right:
            notes.append(
                f"padded {width}x{height} to {width + padding.right}x{height + padding.bottom}, "
                "cropped back after decoding"
            )
        self._work.about = footage.about
        self._work.adjusted[:0] = notes
