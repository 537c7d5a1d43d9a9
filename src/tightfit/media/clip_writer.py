"""Writes a clip to MP4, MKV, WebP or APNG chunk by chunk, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import numpy as np
import torch
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from tightfit.errors import InputError, JobFailed
from tightfit.media.colours import EXACT
from tightfit.media.files import check_writable, whole_file
from tightfit.media.samples import to_samples
from tightfit.media.sound import Sound, SoundTrack


@dataclass(frozen=True)
class _Form:
    """How a kind of file is written.

    Attributes:
        name: of the container, in FFmpeg's words.
        codec: of the pictures. sound: of the sound; None where there is room for none.
        largest: pixels along an axis.
        holds: what refuses a larger one, for people.
        pixels: FFmpeg's formats by (bits, with alpha); None is made of samples for every size.
        options: of the codec. muxer: of the container.
    """

    name: str
    codec: str
    largest: int
    holds: str
    pixels: Mapping[tuple[int, bool], str]
    options: Mapping[str, str] = field(default_factory=dict)
    muxer: Mapping[str, str] = field(default_factory=dict)
    sound: str | None = None


_FORMS = {
    ".mp4": _Form(
        "mp4",
        "libx264",
        16384,
        "H.264",
        {(8, False): "yuv420p"},
        {"crf": "16", "preset": "medium"},
        {"movflags": "+faststart"},
        "aac",
    ),
    ".mkv": _Form(
        "matroska",
        "ffv1",
        32767,
        "FFV1",
        {
            (8, False): "bgr0",
            (8, True): "bgra",
            (16, False): "gbrp16le",
            (16, True): "gbrap16le",
        },
        {"level": "3", "g": "1", "slicecrc": "1", "slices": "4"},
        {},
        "flac",
    ),
    ".apng": _Form(
        "apng",
        "apng",
        2**31 - 1,
        "PNG",
        {
            (8, False): "rgb24",
            (8, True): "rgba",
            (16, False): "rgb48be",
            (16, True): "rgba64be",
        },
        {"pred": "up"},
        {"plays": "0"},
    ),
    ".webp": _Form(
        "webp",
        "libwebp_anim",
        16383,
        "WebP",
        {(8, False): "bgra", (8, True): "bgra"},
        {"lossless": "1"},
        {"loop": "0"},
    ),
}
CLIP_KINDS = tuple(_FORMS)
LOSSLESS = (".mkv", ".apng", ".webp")

_SOURCES = {
    (8, False): "rgb24",
    (8, True): "rgba",
    (16, False): "rgb48le",
    (16, True): "rgba64le",
}
_AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)


class ClipWriter:
    """A context manager that writes what its name says, at `fps` frames per second.

    | name | what |
    |---|---|
    | ``.mp4`` | H.264, BT.709, with AAC; 8 bits |
    | ``.mkv`` | FFV1 with FLAC: bit for bit what was given; 8 or 16 bits, alpha |
    | ``.apng`` | bit for bit; 8 or 16 bits, alpha |
    | ``.webp`` | lossless, or of a `quality` 1 to 100; 8 bits, alpha |

    Odd sizes, which the common 4:2:0 format of H.264 cannot hold, are written as 4:4:4; `notes`
    says so from the start. `sound` begins with the first frame, and ends with the last where it is
    longer. `comment` stands in the file's metadata. Frames are encoded as they come and none is
    kept. The file appears at `path` when the body ends without an exception.

    Raises `InputError` where the file cannot be written or the size is beyond what its kind holds.
    """

    def __init__(
        self,
        path: Path,
        width: int,
        height: int,
        fps: Fraction,
        *,
        comment: str = "",
        bits: int = 8,
        alpha: bool = False,
        quality: int | None = None,
        sound: Sound | None = None,
    ) -> None:
        check_writable(path, CLIP_KINDS)
        self._form = form = _FORMS[path.suffix.lower()]
        if not (0 < width <= form.largest and 0 < height <= form.largest):
            raise InputError(
                f"Cannot write {path}: {width}x{height} is more than the {form.largest} pixels "
                f"along an axis that {form.holds} holds; write a folder of frames."
            )
        if (bits, alpha) not in form.pixels:
            what = f"{bits} bits a sample" if (bits, False) not in form.pixels else "alpha"
            raise InputError(f"Cannot write {path}: it holds no {what}; write an .mkv or a folder.")
        self.path = path
        self.width = width
        self.height = height
        self.fps = Fraction(fps)
        self.comment = comment
        self.frames = 0
        self._bits, self._alpha, self._quality = bits, alpha, quality
        self._pixel_format = form.pixels[bits, alpha]
        notes = []
        if self._pixel_format == "yuv420p" and (width % 2 or height % 2):
            self._pixel_format = "yuv444p"
            notes.append(
                f"wrote 4:4:4 colour for the odd size {width}x{height}; some players refuse it"
            )
        if sound is not None and form.sound is None:
            notes.append(f"left out the sound, which a {path.suffix.lower()} does not hold")
            sound = None
        if sound is not None and form.sound == "aac" and sound.rate not in _AAC_RATES:
            notes.append(f"left out the sound: AAC has no {sound.rate} samples a second")
            sound = None
        self._sound = sound
        self.notes: tuple[str, ...] = tuple(notes)
        self._scope = self._opened()
        self._container: Any = None
        self._stream: Any = None
        self._track: SoundTrack | None = None

    def __enter__(self) -> ClipWriter:
        self._scope.__enter__()
        return self

    def write(self, frames: torch.Tensor) -> None:
        """Append frames [n,3,H,W], or [n,4,H,W] with alpha: uint8, uint16 or float in 0..1.

        Raises `JobFailed` on NaN or infinite values and on another shape.
        """
        channels = (4,) if self._alpha else (3,)
        samples = to_samples(frames, goal=self.path, channels=channels, bits=self._bits)
        height, width = samples.shape[2:]
        if (width, height) != (self.width, self.height):
            raise JobFailed(
                f"Cannot write {self.path}: a frame of {width}x{height} came, "
                f"{self.width}x{self.height} was announced."
            )
        for sample in samples:
            self._encode(self._frame(sample))
            self.frames += 1
            if self._track is not None:
                self._track.up_to(self.frames / self.fps)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scope.__exit__(kind, error, trace)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        form = self._form
        with whole_file(self.path) as temporary:
            self._container = av.open(
                f"file:{temporary}", "w", format=form.name, options=dict(form.muxer)
            )
            try:
                if self.comment:
                    self._container.metadata["comment"] = self.comment
                self._stream = self._new_stream()
                if self._sound is not None and form.sound is not None:
                    self._track = SoundTrack(self._container, self._sound, form.sound)
                yield
                if not self.frames:
                    raise JobFailed(f"Nothing was written to {self.path}: no frame came.")
                self._encode(None)
                if self._track is not None:
                    self._track.end()
                self._container.close()
            except BaseException:
                with suppress(av.error.FFmpegError):
                    self._container.close()
                raise

    def _new_stream(self) -> Any:
        options = dict(self._form.options)
        if self._quality is not None:
            options |= {"lossless": "0", "quality": str(self._quality)}
        stream = self._container.add_stream(self._form.codec, rate=self.fps, options=options)
        stream.width, stream.height = self.width, self.height
        stream.pix_fmt = self._pixel_format
        context = stream.codec_context
        context.thread_type = "AUTO"
        if self._pixel_format.startswith("yuv"):
            context.colorspace = Colorspace.ITU709
            context.color_primaries = ColorPrimaries.BT709
            context.color_trc = ColorTrc.BT709
            context.color_range = ColorRange.MPEG
        return stream

    def _frame(self, sample: torch.Tensor) -> Any:
        array = np.ascontiguousarray(sample.permute(1, 2, 0).numpy())
        frame = av.VideoFrame.from_ndarray(array, format=_SOURCES[self._bits, self._alpha])
        if self._pixel_format.startswith("yuv"):
            frame = frame.reformat(
                format=self._pixel_format,
                dst_colorspace=Colorspace.ITU709,
                dst_color_range=ColorRange.MPEG,
                interpolation=EXACT,
            )
        elif frame.format.name != self._pixel_format:
            frame = frame.reformat(format=self._pixel_format, interpolation=EXACT)
        frame.pts, frame.time_base = self.frames, 1 / self.fps
        return frame

    def _encode(self, frame: Any) -> None:
        """Encode one frame; None flushes the encoder."""
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
