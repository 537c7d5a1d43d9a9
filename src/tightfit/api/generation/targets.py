"""Where what was made goes: names of several outputs, and the writer that each name asks for."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from tightfit.api.result import Frames
from tightfit.errors import UsageError
from tightfit.media.clip_writer import CLIP_KINDS, ClipWriter
from tightfit.media.files import FOLDER, check_writable
from tightfit.media.frame_folder import FrameFolderWriter
from tightfit.media.gif_writer import GIF_KINDS, GifWriter
from tightfit.media.picture import PICTURE_KINDS, write_picture

_RATE = Fraction(24)
_CHUNK = 16


def check_target(out: Path, *, clips: bool, frames: int | None) -> None:
    """Refuse, before anything is loaded, an output that cannot hold what is made, or be written.

    Args:
        out: as the user wrote it.
        clips: whether a clip is made, of so many `frames` where that is known.
    """
    if not clips:
        check_writable(out, PICTURE_KINDS)
        return
    if frames != 1 and out.suffix.lower() in PICTURE_KINDS:
        raise UsageError(f"A clip is made, and {out} is one picture: give an .mp4 or a folder.")
    check_writable(out, (*PICTURE_KINDS, *CLIP_KINDS, *GIF_KINDS, FOLDER))


def names(out: Path, count: int, *, item: int | None = None) -> tuple[Path, ...]:
    """`count` names: OUT itself, or OUT-1 and so on; of prompt `item` of several, OUT-0001."""
    mark = "" if item is None else f"-{item:04d}"
    marks = [mark] if count == 1 else [f"{mark}-{at}" for at in range(1, count + 1)]
    return tuple(out.with_name(f"{out.stem}{mark}{out.suffix}") for mark in marks)


def write(out: Path, frames: Frames, settings: Mapping[str, str]) -> tuple[str, ...]:
    """Write `frames`, whole or not at all, with `settings` in the file where it holds texts.

    Returns what had to be done to the picture for it.
    """
    suffix = out.suffix.lower()
    if suffix in PICTURE_KINDS:
        write_picture(out, frames.pixels[0], text=settings)
        return ()
    count, _, height, width = frames.pixels.shape
    rate = frames.fps or _RATE
    writer: ClipWriter | GifWriter | FrameFolderWriter
    if suffix in CLIP_KINDS:
        writer = ClipWriter(out, width, height, rate, comment=as_comment(settings))
    elif suffix in GIF_KINDS:
        writer = GifWriter(out, rate, comment=as_comment(settings))
    else:
        writer = FrameFolderWriter(out)
    with writer:
        for start in range(0, count, _CHUNK):
            writer.write(frames.pixels[start : start + _CHUNK])
    return writer.notes


def as_comment(settings: Mapping[str, str]) -> str:
    """A line for each."""
    return "\n".join(f"{name}: {value}" for name, value in settings.items())
