"""A clip: the frames that were asked for, upright, with their times."""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import UnidentifiedImageError

from tightfit.errors import InputError, UsageError
from tightfit.media import still
from tightfit.media.animation import animation
from tightfit.media.background import WHITE, Colour, flatten, name_background
from tightfit.media.files import check_readable
from tightfit.media.shots import Follower, Pixels, Shot, Source, at_rate, average_rate, steady_rate
from tightfit.media.sound import SoundPart

_MOST_FPS = 1000
_GROWTH = 16  # frames
_LEAST = 8
"""Bytes that a frame takes of any file, however little happens in it."""
_WORKERS = min(4, os.cpu_count() or 1)
_AHEAD = 2 * _WORKERS
"""Decoded frames that wait to be converted: few, so that memory follows what is asked for."""
_LEGAL = (
    "write A:B or A:B:S, such as 0:81 or 100:113:2, for every S-th frame from A up to but "
    "without B, counted from 0"
)
_LEGAL_SECONDS = "write A:B, such as 1.5:3, for what is shown from A up to B, or B alone"
_SLICE = re.compile(r"(\d{0,9}):(\d{0,9})(?::(\d{0,9}))?")
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?|\.\d{1,9}|\d{1,9}/[1-9]\d{0,8}")

Seconds = tuple[Fraction, Fraction | None]
"""From the first up to but not at the second; None is the end."""


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames in order of showing.

    Attributes:
        pixels: uint8 [T,3,H,W], or uint16 in 0..65535 where the file has more than 8 bits a
            sample; laid over the background where they were transparent.
        fps: the rate at which to play them; the average where their times vary.
        times: when each was shown in the file, in seconds after the file's first frame.
        notes: what a report must say about the reading.
        alpha: [T,1,H,W], of the type of `pixels`; None where it was not asked for or not there.
        sound: which part of the file's sound belongs to them; None where it has none, or where
            their times vary and they do not.
    """

    pixels: torch.Tensor
    fps: Fraction
    times: tuple[float, ...]
    notes: tuple[str, ...]
    alpha: torch.Tensor | None = None
    sound: SoundPart | None = None


def read_clip(
    path: Path,
    *,
    frames: slice | None = None,
    fps: Fraction | None = None,
    seconds: Seconds | None = None,
    background: Colour = WHITE,
    keep_alpha: bool = False,
    opened: Source | None = None,
    follower: Follower | None = None,
) -> Clip:
    """Read a film (MP4, MKV, WebM …) or an animation (GIF, WebP, PNG).

    With `fps`, frames are picked by time as `at_rate` says; then `seconds` leaves those shown from
    its start up to but not at its end; then `frames` counts among those. Host memory follows what
    is asked for: other frames are neither converted nor kept, and nothing behind the last one is
    read. Frames are converted by other threads while the next ones are decoded. `opened` is the
    file, open, where somebody looked into it before; its frames are drawn once. `follower` is told
    of each frame.

    Raises `InputError` where the file is no clip, is cut off or damaged before the last frame
    asked for, or has none of the frames asked for; `UsageError` on an `fps` beyond 0..1000 and on
    a slice that counts from the end.
    """
    if fps is not None and not 0 < fps <= _MOST_FPS:
        raise UsageError(f"--fps `{fps}` is not a frame rate: give more than 0, up to {_MOST_FPS}.")
    wanted = slice(None) if frames is None else frames
    step = 1 if wanted.step is None else wanted.step
    if step < 1 or min(wanted.start or 0, wanted.stop or 0) < 0:
        raise UsageError(f"The frames `{spell(wanted)}` count from the end: {_LEGAL}.")
    opening = _open(path) if opened is None else nullcontext(opened)
    with opening as source, ThreadPoolExecutor(_WORKERS) as pool:
        shots = _within(source.shots(), fps, seconds)
        alone = fps is None and seconds is None
        expected = _expected(source, wanted, path) if alone else None
        pile = _Frames(keep_alpha, background, expected, follower)
        times: list[Fraction] = []
        length = None
        coming: deque[Future[Pixels]] = deque()
        for shot in islice(shots, wanted.start, wanted.stop, wanted.step):
            coming.append(pool.submit(shot.pixels))
            times.append(shot.time)
            length = shot.length
            while coming and (len(coming) > _AHEAD or coming[0].done()):
                pile.add(coming.popleft().result())
        for each in coming:
            pile.add(each.result())
    if not times:
        raise InputError(f"{path} has no frame {_place(wanted, seconds)}; ask for earlier ones.")
    notes = list(source.notes)
    if pile.showed_through:
        notes.append(f"composited alpha over {name_background(background)}")
    asked = None if wanted.stop is None else len(range(wanted.stop)[wanted])
    if asked is not None and len(times) < asked:
        notes.append(f"found {len(times)} of the {asked} frames in {spell(wanted)}")
    varies = False
    if fps is not None:
        rate = fps / step
    else:
        rate, varies = _play_rate(source, times, step, length)
        if varies:
            notes.append(f"frame times vary; plays at {float(rate):.3f} frames per second")
    sound = None
    if source.has_sound and varies:
        notes.append("left out the sound, since frame times vary; --fps X keeps it")
    elif source.has_sound:
        first = times[0] if fps is None else (_tick(fps, seconds) + (wanted.start or 0)) / fps
        sound = SoundPart(source.origin + first, len(times) / rate)
    pixels, alpha = pile.tensors()
    at = tuple(float(time) for time in times)
    return Clip(pixels, rate, at, tuple(notes), alpha, sound)


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


def parse_seconds(text: str, *, name: str = "--seconds") -> Seconds:
    """Turn ``A:B`` into seconds from A up to but not at B; ``B`` alone is ``0:B``, ``A:`` the rest.

    Raises `UsageError` on negative numbers, an empty span and nonsense.
    """
    start, colon, stop = text.strip().rpartition(":")
    if not colon:
        start, stop = "", stop
    parts = [_SECONDS.fullmatch(part) if part else None for part in (start, stop)]
    if any(part and match is None for part, match in zip((start, stop), parts, strict=True)) or (
        not stop and not colon
    ):
        raise UsageError(f"{name} `{text}` is no span of time: {_LEGAL_SECONDS}.")
    span = (Fraction(start or 0), Fraction(stop) if stop else None)
    if span[1] is not None and span[0] >= span[1]:
        raise UsageError(f"{name} `{text}` selects nothing: {_LEGAL_SECONDS}.")
    return span


def _within(shots: Iterator[Shot], fps: Fraction | None, seconds: Seconds | None) -> Iterator[Shot]:
    """The frames at a rate, if one is given, that are shown within a span, if one is given."""
    if fps is not None:
        stop = None if seconds is None or seconds[1] is None else math.ceil(seconds[1] * fps)
        return islice(at_rate(shots, fps), _tick(fps, seconds), stop)
    if seconds is None:
        return shots
    start, end = seconds
    late = dropwhile(lambda shot: shot.time < start, shots)
    return takewhile(lambda shot: end is None or shot.time < end, late)


def _tick(fps: Fraction, seconds: Seconds | None) -> int:
    """The number of the first frame at a rate that is not before the span."""
    return 0 if seconds is None else math.ceil(seconds[0] * fps)


def _place(wanted: slice, seconds: Seconds | None) -> str:
    within = "" if seconds is None else " within those seconds"
    return f"among `{spell(wanted)}`{within}" if wanted != slice(None) else within.strip()


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


def spell(wanted: slice) -> str:
    parts = ["" if part is None else str(part) for part in (wanted.start, wanted.stop, wanted.step)]
    return ":".join(parts[: 3 if parts[2] else 2])


def _expected(source: Source, wanted: slice, path: Path) -> int | None:
    """How many frames come, as far as a header can be trusted: each takes some bytes of a file."""
    if source.frames is None or source.frames > path.stat().st_size // _LEAST:
        return None
    return len(range(source.frames)[wanted]) or None


class _Frames:
    """A pile of equal frames of which there is never a second copy for long.

    Where it is known how many come they have their place from the start, so that others may read
    them meanwhile; else the pile grows in place.
    """

    def __init__(
        self, keep_alpha: bool, background: Colour, expected: int | None, follower: Follower | None
    ) -> None:
        self.showed_through = False
        self._keep_alpha, self._background, self._follower = keep_alpha, background, follower
        self._piles = [_Pile(expected) for _ in range(2 if keep_alpha else 1)]
        self._had_alpha = False

    def add(self, samples: Pixels) -> None:
        """One more frame [H,W,3|4], laid over the background."""
        if samples.shape[2] == 4:
            self._had_alpha = True
            top = np.iinfo(samples.dtype).max
            self.showed_through = self.showed_through or bool(samples[:, :, 3].min() < top)
        flat = flatten(samples, self._background, keep_alpha=self._keep_alpha)
        colours = self._piles[0]
        colours.add(flat[:, :, :3])
        if self._keep_alpha:
            self._piles[1].add(flat[:, :, 3:])
        if self._follower is None:
            return
        whole = colours.whole()
        if colours.count == 1 and whole is not None:
            self._follower.begins(whole)
        self._follower.laid(colours.count, sum(pile.nbytes for pile in self._piles))

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """All colours, and their alpha where it was to be kept; the last call on this pile."""
        alpha = self._piles[1].tensor() if self._keep_alpha and self._had_alpha else None
        return self._piles[0].tensor(), alpha


class _Pile:
    """Of planes."""

    def __init__(self, expected: int | None) -> None:
        self.count = 0
        self._expected = expected
        self._rows: npt.NDArray[Any] = np.empty((0, 0), np.uint8)
        self._shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Of what was added."""
        return int(self.count * self._rows.shape[1] * self._rows.itemsize)

    def add(self, pixels: npt.NDArray[Any]) -> None:
        planes = pixels.transpose(2, 0, 1)
        if not self.count:
            self._begin(planes)
        if self.count == len(self._rows):
            self._grow()
        self._rows[self.count].reshape(self._shape)[:] = planes
        self.count += 1

    def whole(self) -> torch.Tensor | None:
        """The places of all that are expected, [T,C,H,W]; None where that is not known."""
        if self._expected is None:
            return None
        return torch.from_numpy(self._rows).view(len(self._rows), *self._shape)

    def tensor(self) -> torch.Tensor:
        """Everything added, [T,C,H,W]; the last call on this pile."""
        if self._expected is None:
            self._rows.resize((self.count, self._rows.shape[1]), refcheck=False)
        rows = torch.from_numpy(self._rows)
        return rows[: self.count].view(self.count, *self._shape)

    def _begin(self, planes: npt.NDArray[Any]) -> None:
        """Places for all, of which the system gives those that are filled."""
        self._shape = planes.shape
        try:
            self._rows = np.empty((self._expected or 0, planes.size), planes.dtype)
        except MemoryError:
            self._expected = None
            self._rows = np.empty((0, planes.size), planes.dtype)

    def _grow(self) -> None:
        more = self.count + max(_GROWTH, self.count // 8)
        if self._expected is None:
            self._rows.resize((more, self._rows.shape[1]), refcheck=False)
            return
        # Somebody may be reading those that are there, so they stay where they are.
        rows = np.empty((more, self._rows.shape[1]), self._rows.dtype)
        rows[: self.count] = self._rows
        self._rows, self._expected = rows, None
