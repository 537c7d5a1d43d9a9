"""A clip: the frames that were asked for, upright, with their times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import UnidentifiedImageError

from tightfit.errors import InputError, UsageError
from tightfit.media import still
from tightfit.media.animation import animation
from tightfit.media.background import WHITE, Colour, name_background
from tightfit.media.files import check_readable
from tightfit.media.shots import Pixels, Source, at_rate, average_rate, steady_rate

_MOST_FPS = 1000
_GROWTH = 16  # frames
_LEGAL = (
    "write A:B or A:B:S, such as 0:81 or 100:113:2, for every S-th frame from A up to but "
    "without B, counted from 0"
)
_SLICE = re.compile(r"(\d{0,9}):(\d{0,9})(?::(\d{0,9}))?")


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames in order of showing.

    Attributes:
        pixels: uint8 [T,3,H,W], laid over the background where they were transparent.
        fps: the rate at which to play them; the average where their times vary.
        times: when each was shown in the file, in seconds after the file's first frame.
        notes: what a report must say about the reading.
    """

    pixels: torch.Tensor
    fps: Fraction
    times: tuple[float, ...]
    notes: tuple[str, ...]


def read_clip(
    path: Path,
    *,
    frames: slice | None = None,
    fps: Fraction | None = None,
    background: Colour = WHITE,
) -> Clip:
    """Read a film (MP4, MKV, WebM …) or an animation (GIF, WebP).

    With `fps`, frames are picked by time as `at_rate` says; then `frames` counts among those.
    Host memory follows what is asked for: other frames are neither converted nor kept, and
    nothing behind the last one is read.

    Raises `InputError` where the file is no clip, is cut off or damaged before the last frame
    asked for, or has none of the frames asked for; `UsageError` on an `fps` beyond 0..1000 and on
    a slice that counts from the end.
    """
    if fps is not None and not 0 < fps <= _MOST_FPS:
        raise UsageError(f"--fps `{fps}` is not a frame rate: give more than 0, up to {_MOST_FPS}.")
    wanted = slice(None) if frames is None else frames
    step = 1 if wanted.step is None else wanted.step
    if step < 1 or min(wanted.start or 0, wanted.stop or 0) < 0:
        raise UsageError(f"The frames `{_spell(wanted)}` count from the end: {_LEGAL}.")
    with _open(path) as source:
        shots = source.shots(background)
        timed = shots if fps is None else at_rate(shots, fps)
        kept = _Frames()
        times: list[Fraction] = []
        length = None
        for shot in islice(timed, wanted.start, wanted.stop, wanted.step):
            kept.add(shot.pixels())
            times.append(shot.time)
            length = shot.length
    if not times:
        raise InputError(f"{path} has no frame among `{_spell(wanted)}`; ask for earlier ones.")
    notes = list(source.notes)
    if source.has_alpha:
        notes.append(f"composited alpha over {name_background(background)}")
    asked = None if wanted.stop is None else len(range(wanted.stop)[wanted])
    if asked is not None and len(times) < asked:
        notes.append(f"found {len(times)} of the {asked} frames in {_spell(wanted)}")
    if fps is not None:
        rate = fps / step
    else:
        rate, varies = _play_rate(source, times, step, length)
        if varies:
            notes.append(f"frame times vary; plays at {float(rate):.3f} frames per second")
    return Clip(kept.tensor(), rate, tuple(float(time) for time in times), tuple(notes))


def parse_frames(text: str, *, name: str = "--frames") -> slice:
    """Turn ``A:B:S`` into a slice with Python's meaning; each part may be left out.

    Raises `UsageError` on negative numbers, a step of 0, an empty range and nonsense.
    """
    match = _SLICE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{name} `{text}` is not a range of frames: {_LEGAL}.")
    start, stop, step = (int(part) if part else None for part in match.groups())
    if step == 0:
        raise UsageError(f"{name} `{text}` has a step of 0: {_LEGAL}.")
    if stop is not None and (start or 0) >= stop:
        raise UsageError(f"{name} `{text}` selects nothing: {_LEGAL}.")
    return slice(start, stop, step)


@contextmanager
def _open(path: Path) -> Iterator[Source]:
    check_readable(path)
    try:
        with still.open_still(path) as image:
            if not still.is_moving(image):
                raise InputError(f"Cannot read {path} as a clip: it is a single picture.")
            yield animation(image, path)
            return
    except UnidentifiedImageError:
        pass
    from tightfit.media.film import open_film  # PyAV: a tensor or a still needs none

    with open_film(path) as source:
        yield source


def _play_rate(
    source: Source, times: list[Fraction], step: int, length: Fraction | None
) -> tuple[Fraction, bool]:
    """Frames per second of every `step`-th frame, and whether their times vary."""
    if times[-1] <= times[0]:
        own = 1 / length if length else Fraction(1)
        return (source.rates[0] if source.rates else own) / step, len(times) > 1
    rates = [rate / step for rate in source.rates]
    steady = steady_rate(times, rates, grain=source.grain)
    return (average_rate(times), True) if steady is None else (steady, False)


def _spell(wanted: slice) -> str:
    parts = ["" if part is None else str(part) for part in (wanted.start, wanted.stop, wanted.step)]
    return ":".join(parts[: 3 if parts[2] else 2])


class _Frames:
    """A pile of equal frames that grows in place, so that no second copy is ever held."""

    def __init__(self) -> None:
        self._rows: Pixels = np.empty((0, 0), np.uint8)
        self._shape: tuple[int, ...] = ()
        self._count = 0

    def add(self, pixels: Pixels) -> None:
        planes = pixels.transpose(2, 0, 1)
        if self._count == len(self._rows):
            self._shape = planes.shape
            more = max(_GROWTH, self._count // 8)
            self._rows.resize((self._count + more, planes.size), refcheck=False)
        self._rows[self._count].reshape(self._shape)[:] = planes
        self._count += 1

    def tensor(self) -> torch.Tensor:
        """Everything added, uint8 [T,C,H,W]; the last call on this pile."""
        self._rows.resize((self._count, self._rows.shape[1]), refcheck=False)
        return torch.from_numpy(self._rows).view(self._count, *self._shape)
