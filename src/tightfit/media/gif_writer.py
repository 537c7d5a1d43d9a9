"""Writes a clip as an animated GIF, whole or not at all."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import TracebackType

import torch
from PIL import Image

from tightfit.errors import JobFailed
from tightfit.media.files import check_writable, whole_file
from tightfit.media.picture import to_pillow
from tightfit.media.samples import to_bytes

GIF_KINDS = (".gif",)
_TICK = 10
"""Milliseconds: a GIF counts time in hundredths of a second."""


class GifWriter:
    """A context manager: frames in 256 colours each, repeated for ever.

    `notes` says where the rate is not one that a GIF can have. The file appears at `path` when the
    body ends without an exception. Raises `InputError` where it cannot be written.
    """

    def __init__(self, path: Path, fps: Fraction, *, comment: str = "") -> None:
        check_writable(path, GIF_KINDS)
        self.path = path
        self.comment = comment
        self._frames: list[Image.Image] = []
        ideal = 1000 / fps
        self._delay = max(2, round(ideal / _TICK)) * _TICK
        self.notes: tuple[str, ...] = (
            (f"a GIF shows {1000 / self._delay:g} frames per second, not {float(fps):g}",)
            if self._delay != ideal
            else ()
        )

    def __enter__(self) -> GifWriter:
        return self

    def write(self, frames: torch.Tensor) -> None:
        """Append frames [n,3,H,W], uint8 or float in 0..1. Raises `JobFailed` as others do."""
        for sample in to_bytes(frames, goal=self.path):
            self._frames.append(to_pillow(sample).quantize(method=Image.Quantize.MEDIANCUT))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        if not self._frames:
            raise JobFailed(f"Nothing was written to {self.path}: no frame came.")
        first, *others = self._frames
        with whole_file(self.path) as temporary:
            first.save(
                temporary,
                "GIF",
                save_all=True,
                append_images=others,
                duration=self._delay,
                loop=0,
                comment=self.comment.encode(),
            )
