"""Sound: of a file of its own or of a film, read by the film's clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from tightfit.errors import InputError, JobFailed
from tightfit.media.containers import open_container
from tightfit.media.files import check_readable, check_writable, whole_file
from tightfit.media.lengths import is_cut_off
from tightfit.media.samples import check_finite

if TYPE_CHECKING:
    from av.audio.stream import AudioStream
    from av.container import InputContainer

SOUND_KINDS = (".wav", ".flac")

_LIMITS = {
    "protocol_whitelist": "file",
    "format_whitelist": "wav,w64,aiff,caf,flac,mp3,ogg,aac,"
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv",
}
_LAYOUTS = {1: "mono", 2: "stereo", 3: "2.1", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
_CODECS = {".wav": ("wav", "pcm_s24le"), ".flac": ("flac", "flac")}
_BLOCK = 1 << 16  # samples
_WANDER = 64
"""Samples that a block may lie beside its time: a resampler holds some back."""
_MOST = 1 << 31  # samples of all channels: eight GiB


@dataclass(frozen=True)
class SoundPart:
    """What is heard while some frames are shown.

    Attributes:
        start: by the clock of the film, in seconds.
        length: in seconds; None is to the end.
    """

    start: Fraction = Fraction(0)
    length: Fraction | None = None


@dataclass(frozen=True, eq=False)
class Sound:
    """Samples on the host.

    Attributes:
        samples: float32 [C,L], -1..1.
        rate: samples a second of each channel.
        notes: what a report must say about the reading.
    """

    samples: torch.Tensor
    rate: int
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> Fraction:
        """How long it is."""
        return Fraction(self.samples.shape[1], self.rate)


def read_sound(
    path: Path,
    part: SoundPart | None = None,
    *,
    rate: int | None = None,
    channels: int | None = None,
) -> Sound:
    """The first sound of a file (WAV, FLAC, MP3, Ogg, a film …), or the part of it.

    With a `part` of known length the result has exactly so many samples: where the file has none,
    it is silent. Samples lie where their times say. `rate` and `channels` None leave the file's.

    Raises `InputError` where the file has no sound, is damaged, or ends before the part begins.
    """
    with _opened(path) as (container, stream):
        own = (int(stream.rate), int(stream.channels))
        rate, channels = rate or own[0], channels or own[1]
        notes = _changes(own, (rate, channels))
        start = Fraction() if part is None else part.start
        length = None if part is None or part.length is None else round(part.length * rate)
        pile = _Pile(channels, length, path)
        first: int | None = None
        for block, at in _blocks(container, stream, path, rate, channels):
            if part is None and first is None:
                first = at
            place = at - (first or 0) if part is None else at - round(start * rate)
            if length is not None and place >= length:
                break
            pile.put(block, place)
        samples = pile.tensor()
    if not samples.shape[1] or not pile.heard:
        if part is None or length is None:
            raise InputError(f"Cannot read {path}: its sound is empty there; give another file.")
        notes = (*notes, "the file has no sound while these frames are shown")
    return Sound(samples, rate, notes)


def has_sound_alone(path: Path) -> bool:
    """Whether the file is sound and no picture: music with a cover is."""
    import av

    try:
        with open_container(path, _LIMITS) as container:
            moving = [each for each in container.streams.video if not _is_cover(each)]
            return bool(container.streams.audio) and not moving
    except av.error.FFmpegError:
        return False


def check_sound(path: Path) -> None:
    """Refuse, before any work, an output for sound that is none or could not be written."""
    check_writable(path, SOUND_KINDS)


def write_sound(path: Path, sound: Sound, *, comment: str = "") -> None:
    """Write WAV or FLAC of 24 bits a sample, whole or not at all; louder than 1 is clipped.

    Raises `InputError` where the file cannot be written, `JobFailed` on NaN or infinite values.
    """
    import av

    check_writable(path, SOUND_KINDS)
    check_finite(sound.samples, goal=path)
    kind, codec = _CODECS[path.suffix.lower()]
    with (
        whole_file(path, needs=sound.samples.numel() * 3) as temporary,
        av.open(f"file:{temporary}", "w", format=kind) as container,
    ):
        if comment:
            container.metadata["comment"] = comment
        track = SoundTrack(container, sound, codec)
        track.up_to(sound.seconds)
        track.end()


class SoundTrack:
    """The sound of a film that is being written, in step with its frames."""

    def __init__(self, container: Any, sound: Sound, codec: str) -> None:
        channels = sound.samples.shape[0]
        if channels not in _LAYOUTS:
            raise JobFailed(f"Sound of {channels} channels cannot be written: 1 to 8 can.")
        self._container = container
        self._sound = sound
        self._whole = codec != "aac"
        self._layout = _LAYOUTS[channels]
        self._stream = container.add_stream(codec, rate=sound.rate, layout=self._layout)
        if self._whole:
            self._stream.format = "s32"
            self._stream.options = {"bits_per_raw_sample": "24"}
        else:
            self._stream.bit_rate = 96_000 * channels
        self._done = 0

    def up_to(self, time: Fraction) -> None:
        """Encode what is heard before `time`, in seconds."""
        end = min(self._sound.samples.shape[1], round(time * self._sound.rate))
        while self._done < end:
            stop = min(end, self._done + _BLOCK)
            self._encode(self._frame(self._sound.samples[:, self._done : stop]))
            self._done = stop

    def end(self) -> None:
        """Encode what the encoder still holds."""
        self._encode(None)

    def _frame(self, samples: torch.Tensor) -> Any:
        import av

        if self._whole:
            steps = np.rint(samples.double().numpy() * 2**23).clip(-(2**23), 2**23 - 1)
            packed = np.ascontiguousarray((steps.astype(np.int32) << 8).T).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(packed, format="s32", layout=self._layout)
        else:
            clipped = np.ascontiguousarray(samples.clamp(-1, 1).numpy())
            frame = av.AudioFrame.from_ndarray(clipped, format="fltp", layout=self._layout)
        frame.sample_rate = self._sound.rate
        frame.pts, frame.time_base = self._done, Fraction(1, self._sound.rate)
        return frame

    def _encode(self, frame: Any) -> None:
        for packet in self._stream.encode(frame):
            self._container.mux(packet)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[InputContainer, AudioStream]]:
    import av

    check_readable(path)
    try:
        container = open_container(path, _LIMITS)
    except av.error.FFmpegError as error:
        raise InputError(
            f"Cannot read {path} as sound: it is no WAV, FLAC, MP3, Ogg or film that can be read, "
            "or it is cut off; get it anew or convert it to WAV."
        ) from error
    with container:
        if not container.streams.audio:
            raise InputError(f"Cannot read {path} as sound: it holds none; give another file.")
        stream = container.streams.audio[0]
        if stream.codec_context is None or not (stream.rate and stream.channels):
            raise InputError(
                f"Cannot read {path} as sound: nothing decodes what it holds, or it is damaged; "
                "convert it to WAV."
            )
        yield container, stream


def _is_cover(stream: Any) -> bool:
    from av.stream import Disposition

    return bool(stream.disposition & Disposition.attached_pic)


def _changes(own: tuple[int, int], wanted: tuple[int, int]) -> tuple[str, ...]:
    """What is said where samples become others."""
    notes = []
    if own[0] != wanted[0]:
        notes.append(f"sound of {own[0]} samples a second resampled to {wanted[0]}")
    if own[1] != wanted[1]:
        notes.append(f"sound of {own[1]} channels mixed to {wanted[1]}")
    return tuple(notes)


def _blocks(
    container: InputContainer, stream: AudioStream, path: Path, rate: int, channels: int
) -> Iterator[tuple[npt.NDArray[np.float32], int]]:
    """Samples [C,n] with the number of the first by the file's clock."""
    import av

    layout = stream.layout if channels == stream.channels else _LAYOUTS[channels]
    resampler = av.AudioResampler(format="fltp", layout=layout, rate=rate)
    place = None
    try:
        for frame in container.decode(stream):
            if frame.sample_rate != stream.rate or frame.layout.name != stream.layout.name:
                raise InputError(
                    f"Cannot read {path}: its sound changes its rate or channels on the way; "
                    "convert it to WAV first."
                )
            said = None
            if frame.pts is not None and frame.time_base:
                said = round(frame.pts * frame.time_base * rate)
            # The clock of a film is coarser than samples are short: small steps are its rounding.
            grain = 0 if not frame.time_base else frame.time_base * rate + _WANDER
            if place is None or (said is not None and abs(said - place) > grain):
                place = said if said is not None else place or 0
            for made in resampler.resample(frame):
                samples = made.to_ndarray()
                yield samples, place
                place += samples.shape[1]
        for made in resampler.resample(None):
            if place is not None:
                yield made.to_ndarray(), place
    except av.error.FFmpegError as error:
        raise InputError(
            f"Cannot read the sound of {path} to its end: it is cut off or damaged; get it anew."
        ) from error
    if is_cut_off(path):
        raise InputError(f"Cannot read the sound of {path} to its end: it is cut off; get it anew.")


class _Pile:
    """Samples, each at its place; silent where none came."""

    def __init__(self, channels: int, length: int | None, path: Path) -> None:
        self._length = length
        self._path = path
        self._end = 0 if length is None else length
        self._samples = np.zeros((channels, self._end), np.float32)
        self.heard = False

    def put(self, block: npt.NDArray[np.float32], place: int) -> None:
        skipped = max(0, -place)
        block, place = block[:, skipped:], place + skipped
        stop = place + block.shape[1]
        if self._length is None and stop > self._samples.shape[1]:
            self._grow(stop)
        block = block[:, : max(0, self._samples.shape[1] - place)]
        if block.shape[1]:
            self.heard = True
            self._samples[:, place : place + block.shape[1]] = block
            self._end = max(self._end, place + block.shape[1])

    def tensor(self) -> torch.Tensor:
        """Everything, float32 [C,L]."""
        return torch.from_numpy(np.ascontiguousarray(self._samples[:, : self._end]))

    def _grow(self, least: int) -> None:
        if least * len(self._samples) > _MOST:
            raise InputError(f"Cannot read {self._path}: its sound is too long to hold; cut it.")
        wider = np.zeros((len(self._samples), max(least, self._end * 3 // 2)), np.float32)
        wider[:, : self._end] = self._samples[:, : self._end]
        self._samples = wider
