"""What a picture, a clip or a folder of frames is, found out without decoding it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from PIL import UnidentifiedImageError

from tightfit.errors import InputError
from tightfit.media import still
from tightfit.media.animation import animation
from tightfit.media.files import check_readable
from tightfit.media.frame_folder import frame_paths
from tightfit.media.shots import Source
from tightfit.media.sound import has_sound_alone


@dataclass(frozen=True)
class MediaInfo:
    """What the header says.

    Attributes:
        width, height: upright, in pixels; 0 of sound.
        frames: 1 for a picture; None where only decoding would tell.
        fps: the header's rate, which varies within some clips; None where it says nothing.
    """

    kind: Literal["picture", "clip", "sound"]
    width: int
    height: int
    frames: int | None
    fps: Fraction | None
    has_alpha: bool
    has_sound: bool


def probe(path: Path) -> MediaInfo:
    """Look at a file or a folder of frames; its content decides what it is, not its name.

    At most one frame is decoded. Raises `InputError` where the file is missing, of another kind,
    or cut off within its header; a cut further on is found when it is read.
    """
    if path.is_dir():
        return _of_folder(path)
    check_readable(path)
    try:
        with still.open_still(path) as image:
            if still.is_moving(image):
                return _of_clip(animation(image, path))
            width, height = still.turn_of(image, path).size(*image.size)
            return MediaInfo("picture", width, height, 1, None, still.has_alpha(image), False)
    except UnidentifiedImageError:
        from tightfit.media.film import open_film  # PyAV: a tensor or a still needs none

        try:
            with open_film(path) as source:
                return _of_clip(source)
        except InputError:
            if has_sound_alone(path):
                return MediaInfo("sound", 0, 0, None, None, False, True)
            raise


@contextmanager
def look_into(path: Path) -> Iterator[tuple[MediaInfo, Source | None]]:
    """What `probe` says, and a film's frames, so that it need not be opened again to be read.

    Raises as `probe` does; what the body raises passes unchanged.
    """
    with ExitStack() as stack:
        source = None if path.is_dir() or _is_picture(path) else _film(path, stack)
        yield (probe(path) if source is None else _of_clip(source)), source


def _is_picture(path: Path) -> bool:
    check_readable(path)
    try:
        with still.open_still(path):
            return True
    except UnidentifiedImageError:
        return False


def _film(path: Path, stack: ExitStack) -> Source | None:
    """One that is open until the stack ends; None where the file is none."""
    from tightfit.media.film import open_film  # PyAV: a tensor or a still needs none

    try:
        return stack.enter_context(open_film(path))
    except InputError:
        return None


def _of_clip(source: Source) -> MediaInfo:
    fps = source.rates[0] if source.rates else None
    return MediaInfo(
        "clip",
        source.width,
        source.height,
        source.frames,
        fps,
        source.has_alpha,
        source.has_sound,
    )


def _of_folder(path: Path) -> MediaInfo:
    paths = frame_paths(path)
    first = probe(paths[0])
    return MediaInfo("clip", first.width, first.height, len(paths), None, first.has_alpha, False)
