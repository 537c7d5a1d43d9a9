"""Writes a clip to MP4 chunk by chunk, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import numpy as np
import torch
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from tightfit.errors import InputError, JobFailed
from tightfit.media.files import check_writable, whole_file
from tightfit.media.film import EXACT
from tightfit.media.samples import to_bytes

CLIP_KINDS = (".mp4",)

_LARGEST = 16384  # pixels along an axis, in libx264
_QUALITY = {"crf": "16", "preset": "medium"}


class ClipWriter:
    """A context manager: H.264 in MP4, BT.709, at `fps` frames per second.

    Odd sizes, which the common 4:2:0 format cannot hold, are written as 4:4:4; `notes` says so
    from the start. `comment` stands in the file's metadata. The file appears at `path` when the
    body ends without an exception.

    Raises `InputError` where the file cannot be written or the size is beyond what H.264 holds.
    """

    def __init__(
        self, path: Path, width: int, height: int, fps: Fraction, *, comment: str = ""
    ) -> None:
        check_writable(path, CLIP_KINDS)
        if not (0 < width <= _LARGEST and 0 < height <= _LARGEST):
            raise InputError(
                f"Cannot write {path}: {width}x{height} is more than the {_LARGEST} pixels along "
                "an axis that H.264 holds; write a folder of frames."
            )
        self.path = path
        self.width = width
        self.height = height
        self.fps = Fraction(fps)
        self.comment = comment
        self.frames = 0
        odd = width % 2 or height % 2
        self._pixel_format = "yuv444p" if odd else "yuv420p"
        self.notes: tuple[str, ...] = (
            (f"wrote 4:4:4 colour for the odd size {width}x{height}; some players refuse it",)
            if odd
            else ()
        )
        self._scope = self._opened()
        self._container: Any = None
        self._stream: Any = None

    def __enter__(self) -> ClipWriter:
        self._scope.__enter__()
        return self

    def write(self, frames: torch.Tensor) -> None:
        """Append frames [n,3,H,W], uint8 or float in 0..1.

        Raises `JobFailed` on NaN or infinite values and on another shape.
        """
        samples = to_bytes(frames, goal=self.path)
        height, width = samples.shape[2:]
        if (width, height) != (self.width, self.height):
            raise JobFailed(
                f"Cannot write {self.path}: a frame of {width}x{height} came, "
                f"{self.width}x{self.height} was announced."
            )
        for sample in samples:
            self._encode(self._frame(sample))
            self.frames += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scope.__exit__(kind, error, trace)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        with whole_file(self.path) as temporary:
            self._container = av.open(
                f"file:{temporary}", "w", format="mp4", options={"movflags": "+faststart"}
            )
            try:
                if self.comment:
                    self._container.metadata["comment"] = self.comment
                self._stream = self._new_stream()
                yield
                if not self.frames:
                    raise JobFailed(f"Nothing was written to {self.path}: no frame came.")
                self._encode(None)
                self._container.close()
            except BaseException:
                with suppress(av.error.FFmpegError):
                    self._container.close()
                raise

    def _new_stream(self) -> Any:
        stream = self._container.add_stream("libx264", rate=self.fps, options=_QUALITY)
        stream.width, stream.height = self.width, self.height
        stream.pix_fmt = self._pixel_format
        context = stream.codec_context
        context.colorspace = Colorspace.ITU709
        context.color_primaries = ColorPrimaries.BT709
        context.color_trc = ColorTrc.BT709
        context.color_range = ColorRange.MPEG
        return stream

    def _frame(self, sample: torch.Tensor) -> Any:
        array = np.ascontiguousarray(sample.permute(1, 2, 0).numpy())
        frame = av.VideoFrame.from_ndarray(array, format="rgb24").reformat(
            format=self._pixel_format,
            dst_colorspace=Colorspace.ITU709,
            dst_color_range=ColorRange.MPEG,
            interpolation=EXACT,
        )
        frame.pts, frame.time_base = self.frames, 1 / self.fps
        return frame

    def _encode(self, frame: Any) -> None:
        """Encode one frame; None flushes the encoder."""
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
