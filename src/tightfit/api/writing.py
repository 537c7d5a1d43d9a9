"""Frames go to their file while they are decoded, so that a long clip never lies in memory."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import torch

from tightfit.api.behind import Behind
from tightfit.api.latent import frames_of
from tightfit.api.result import Frames
from tightfit.media.latents import LatentFile
from tightfit.media.outputs import PLAIN, FrameWriter, Terms, open_frames
from tightfit.media.samples import count_bad
from tightfit.media.sound import Sound, write_sound
from tightfit.run.vae import Traits
from tightfit.units import GIB

_IN_MEMORY = GIB
"""Sums of tiles that take more than this are gathered in a file beside the output."""
_CHUNK = 16
"""Frames that are converted at once."""


@dataclass(frozen=True)
class Target:
    """Where frames go.

    Attributes:
        path: its name decides what is written.
        terms: how.
        sound: goes with them, instead of what a latent file has; None leaves that.
        allow_nan: values that are not finite are written as black.
    """

    path: Path
    terms: Terms = PLAIN
    sound: Sound | None = None
    allow_nan: bool = False


def write_frames(target: Target, frames: Frames) -> tuple[str, ...]:
    """Write what is decoded, or its sound where that is all; what had to be done to the picture.

    Values that are not finite are refused by the writers, unless the target allows them.
    """
    sound = frames.sound if target.sound is None else target.sound
    if not frames.pixels.shape[0] and sound is not None:
        write_sound(target.path, sound)
        return ()
    said: tuple[str, ...] = ()
    bad = count_bad(frames.pixels) if target.allow_nan else 0
    if bad:
        frames = replace(frames, pixels=frames.pixels.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
        said = (f"{bad} values that are not finite were written as black",)
    count, channels, height, width = frames.pixels.shape
    with open_frames(
        target.path,
        width=width,
        height=height,
        frames=count,
        fps=frames.fps,
        alpha=channels == 4,
        sound=sound,
        terms=target.terms,
    ) as writer:
        for start in range(0, count, _CHUNK):
            writer.write(frames.pixels[start : start + _CHUNK])
    return (*said, *writer.notes)


class FrameSink:
    """A context manager, and the delivery of a decode: what it takes is written meanwhile.

    A thread writes, so that the card need not wait; a few parts wait at most. The file appears when
    the body ends without an exception. A try of the decode that fails is void, and the file is
    begun anew.
    """

    def __init__(self, target: Target, content: LatentFile | torch.Tensor, traits: Traits) -> None:
        self._target, self._traits = target, traits
        self._content = content
        latent = content.latent if isinstance(content, LatentFile) else content
        axes = traits.latent_axes(tuple(latent.shape[2:]))
        *time, height, width = (axis.samples for axis in axes)
        known = content if isinstance(content, LatentFile) else None
        self._per_item = self._kept = time[0] if time else 1
        if known is not None and time and (known.frames or known.width is not None):
            self._kept = known.frames or 1
        self.frames = self._kept * latent.shape[0]
        self.width = (known and known.width) or width
        self.height = (known and known.height) or height
        self.notes: tuple[str, ...] = ()
        self.bad = 0
        self._fps = known.fps if known is not None else None
        self._alpha = known is not None and known.alpha is not None and known.background is not None
        self._sound = target.sound
        if self._sound is None and known is not None and known.sound is not None:
            self._sound = Sound(known.sound, known.sound_rate or 1)
        self._seen = 0
        self._open = ExitStack()
        self._behind: Behind[tuple[torch.Tensor, int]] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> FrameSink:
        """Refuses an output that cannot be written, before anything is decoded."""
        self.notes = self._writing().notes
        return self

    def begin(self) -> None:
        """What was written before is void."""
        self._void()
        self._seen = self.bad = 0
        writer = self._open.enter_context(self._writing())
        self._behind = Behind(lambda part: self._write(writer, *part))

    def take(self, samples: torch.Tensor) -> None:
        """Items [n,3,H,W], or the next frames [1,3,t,H,W] of a clip, which are written without the
        padding. Raises what went wrong with an earlier part.
        """
        if self._behind is None:
            self.begin()
        assert self._behind is not None
        at = self._seen % self._per_item
        count = samples.shape[2] if self._traits.axes == 3 else samples.shape[0]
        self._seen += count
        wanted = min(count, self._kept - at) if self._traits.axes == 3 else count
        if wanted < 1:
            return
        part = samples[:, :, :wanted] if self._traits.axes == 3 else samples
        self._behind.put((part, (self._seen - count) // self._per_item * self._kept + at))

    def _write(self, writer: FrameWriter, part: torch.Tensor, first: int) -> None:
        """A part whose first frame is the file's frame `first`."""
        wanted = part.shape[2] if self._traits.axes == 3 else part.shape[0]
        frames = frames_of(part, self._traits, self._part(first, wanted)).pixels
        bad = count_bad(frames)
        self.bad += bad
        if bad and self._target.allow_nan:
            frames = frames.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        writer.write(frames)

    def spool(self, size: int) -> Path | None:
        """A file beside the output for what would fill the memory."""
        if size <= _IN_MEMORY:
            return None
        if self._folder is None:
            beside = self._target.path.resolve().parent
            self._folder = tempfile.TemporaryDirectory(prefix=".tightfit-", dir=beside)
        file = Path(self._folder.name) / "sums"
        file.unlink(missing_ok=True)
        return file

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with self._open:
                behind, self._behind = self._behind, None
                if behind is not None:
                    behind.finish() if kind is None else behind.stop()
                if error is not None:
                    raise error
        except BaseException as raised:
            if raised is not error:
                raise
        finally:
            if self._folder is not None:
                self._folder.cleanup()
        if kind is None and self.bad:
            said = f"{self.bad} values that are not finite were written as black"
            self.notes = (said, *self.notes)

    def left(self) -> Frames:
        """What is not in the file: no frames, and what is said of them."""
        return Frames(torch.zeros(0, 3, self.height, self.width), self._fps, self._sound)

    def _part(self, first: int, count: int) -> LatentFile | torch.Tensor:
        """The latent file as if it were of these frames alone."""
        if not isinstance(self._content, LatentFile):
            return self._content
        alpha = self._content.alpha
        return replace(
            self._content,
            frames=count if self._traits.axes == 3 else self._content.frames,
            alpha=None if alpha is None else alpha[first : first + count],
            sound=None,
        )

    def _writing(self) -> FrameWriter:
        return open_frames(
            self._target.path,
            width=self.width,
            height=self.height,
            frames=self.frames,
            fps=self._fps,
            alpha=self._alpha,
            sound=self._sound,
            terms=self._target.terms,
        )

    def _void(self) -> None:
        behind, self._behind = self._behind, None
        if behind is None:
            return
        behind.stop()
        stack, self._open = self._open, ExitStack()
        try:
            with stack:
                raise _Void
        except _Void:
            pass


class _Void(Exception):
    """A try that failed leaves no file."""
