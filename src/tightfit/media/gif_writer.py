"""Writes a clip as an animated GIF frame by frame, whole or not at all."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch
from PIL import GifImagePlugin, Image

from tightfit.errors import InputError, JobFailed
from tightfit.media.files import check_writable, whole_file
from tightfit.media.picture_writer import to_pillow
from tightfit.media.samples import to_bytes

GIF_KINDS = (".gif",)
_TICK = 10
"""Milliseconds: a GIF counts time in hundredths of a second."""
_LARGEST = 65535
_FOR_EVER = b"\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0"
_COMMENT, _BLOCK = b"\x21\xfe", 255
_TRAILER = b";"


class GifWriter:
    """A context manager: frames in 256 colours each, repeated for ever.

    `notes` says where the rate is not one that a GIF can have. Frames are written as they come and
    none is kept. The file appears at `path` when the body ends without an exception. Raises
    `InputError` where it cannot be written.
    """

    def __init__(self, path: Path, fps: Fraction, *, comment: str = "") -> None:
        check_writable(path, GIF_KINDS)
        self.path = path
        self.comment = comment
        self.frames = 0
        ideal = 1000 / fps
        self._delay = max(2, round(ideal / _TICK)) * _TICK
        self.notes: tuple[str, ...] = (
            (f"a GIF shows {1000 / self._delay:g} frames per second, not {float(fps):g}",)
            if self._delay != ideal
            else ()
        )
        self._scope = self._opened()
        self._file: BinaryIO | None = None
        self._size = (0, 0)

    def __enter__(self) -> GifWriter:
        self._scope.__enter__()
        return self

    def write(self, frames: torch.Tensor) -> None:
        """Append frames [n,3,H,W], uint8 or float in 0..1. Raises `JobFailed` as others do."""
        assert self._file is not None
        for sample in to_bytes(frames, goal=self.path):
            picture = to_pillow(sample).quantize(method=Image.Quantize.MEDIANCUT)
            if not self.frames:
                self._file.write(self._header(*picture.size))
            elif picture.size != self._size:
                raise JobFailed(
                    f"Cannot write {self.path}: a frame of {picture.width}x{picture.height} came "
                    f"after {self._size[0]}x{self._size[1]}."
                )
            self._size = picture.size
            for part in GifImagePlugin.getdata(
                picture, (0, 0), duration=self._delay, include_color_table=True
            ):
                self._file.write(part)
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
        with whole_file(self.path) as temporary, temporary.open("wb") as self._file:
            yield
            if not self.frames:
                raise JobFailed(f"Nothing was written to {self.path}: no frame came.")
            self._file.write(_TRAILER)
            self._file.flush()

    def _header(self, width: int, height: int) -> bytes:
        """What stands before the frames: GIF89a, 17 to 18, 24 and 26."""
        if max(width, height) > _LARGEST:
            raise InputError(
                f"Cannot write {self.path}: {width}x{height} is more than the {_LARGEST} pixels "
                "along an axis that a GIF holds; write a folder of frames."
            )
        head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x70, 0, 0) + _FOR_EVER
        if self.comment:
            text = self.comment.encode()
            parts = [text[at : at + _BLOCK] for at in range(0, len(text), _BLOCK)]
            head += _COMMENT + b"".join(bytes([len(part)]) + part for part in parts) + b"\0"
        return head
