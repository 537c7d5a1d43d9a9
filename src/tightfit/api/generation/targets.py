"""Where what was made goes: names of several outputs, and the writer that each name asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tightfit.api.result import Frames
from tightfit.errors import UsageError
from tightfit.media.files import check_writable
from tightfit.media.outputs import CLIP_KINDS, Terms, check_frames, open_frames
from tightfit.media.picture_writer import PICTURE_KINDS

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
    kind = out.suffix.lower()
    if frames != 1 and kind in PICTURE_KINDS and kind not in CLIP_KINDS:
        raise UsageError(f"A clip is made, and {out} is one picture: give an .mp4 or a folder.")
    check_frames(out, Terms(), frames=frames, what="the clip")


def names(out: Path, count: int, *, item: int | None = None) -> tuple[Path, ...]:
    """`count` names: OUT itself, or OUT-1 and so on; of prompt `item` of several, OUT-0001."""
    mark = "" if item is None else f"-{item:04d}"
    marks = [mark] if count == 1 else [f"{mark}-{at}" for at in range(1, count + 1)]
    return tuple(out.with_name(f"{out.stem}{mark}{out.suffix}") for mark in marks)


def write(out: Path, frames: Frames, settings: Mapping[str, str]) -> tuple[str, ...]:
    """Write `frames`, whole or not at all, with `settings` in the file where it holds texts.

    Returns what had to be done to the picture for it.
    """
    count, _, height, width = frames.pixels.shape
    with open_frames(
        out,
        width=width,
        height=height,
        frames=count,
        fps=frames.fps,
        sound=frames.sound,
        terms=Terms(text=tuple(settings.items())),
    ) as writer:
        for start in range(0, count, _CHUNK):
            writer.write(frames.pixels[start : start + _CHUNK])
    return writer.notes
