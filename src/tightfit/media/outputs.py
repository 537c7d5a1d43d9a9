"""The writer that the name of an output asks for."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import torch

from tightfit.errors import JobFailed, UsageError
from tightfit.media.files import FOLDER, check_writable
from tightfit.media.frame_folder import FrameFolderWriter
from tightfit.media.gif_writer import GIF_KINDS, GifWriter
from tightfit.media.picture_writer import (
    LOSSY,
    PICTURE_KINDS,
    check_size,
    check_terms,
    write_picture,
)
from tightfit.media.sound import Sound

CLIP_KINDS = (".mp4", ".mkv", *GIF_KINDS, ".apng", ".webp")
"""Written frame by frame; a ``.webp`` of one frame is a picture."""
FRAME_KINDS = tuple(dict.fromkeys((*PICTURE_KINDS, *CLIP_KINDS, FOLDER)))
WITH_SOUND = (".mp4", ".mkv")
WITH_ALPHA = (".png", ".webp", ".apng", ".mkv", FOLDER)
DEEP = (".png", ".mkv", ".apng", FOLDER)
_RATE = Fraction(24)


@dataclass(frozen=True)
class Terms:
    """How an output is to be written.

    Attributes:
        bits: of a sample, 8 or 16.
        quality: 1 to 100; None is lossless for WebP, and the best usual one for JPEG.
        text: what stands in the file about it, by keywords.
    """

    bits: int = 8
    quality: int | None = None
    text: tuple[tuple[str, str], ...] = ()


PLAIN = Terms()


class FrameWriter(Protocol):
    """A context manager that takes frames [n,3|4,H,W] in order; on leaving it the file is whole.

    Attributes:
        notes: what had to be done to the picture, or was left out; known from the start.
    """

    notes: tuple[str, ...]

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End: on an exception there is no file."""

    def write(self, frames: torch.Tensor) -> None:
        """Append frames."""


def check_frames(
    path: Path, terms: Terms, *, frames: int | None, alpha: bool = False, what: str
) -> None:
    """Refuse, before any work, an output that cannot hold `frames` frames, or be written.

    Args:
        path: as the user wrote it.
        terms: of its writing.
        frames: how many come; None where that is not known, but more than one may.
        alpha: they have it.
        what: holds them, for the error.

    Raises `UsageError` and `InputError`.
    """
    check_writable(path, FRAME_KINDS)
    kind = _kind(path)
    if frames != 1 and kind in PICTURE_KINDS and kind not in CLIP_KINDS:
        many = "several" if frames is None else str(frames)
        raise UsageError(
            f"{what} holds {many} frames, and {path} is one picture: give an .mp4 or a folder."
        )
    if alpha and kind not in WITH_ALPHA:
        raise UsageError(
            f"{what} keeps alpha, and {path} holds none: give a .png, an .mkv or a folder."
        )
    if terms.bits not in (8, 16):
        raise UsageError(f"--bits `{terms.bits}` is no depth of a picture: 8 or 16.")
    if terms.bits == 16 and kind not in DEEP:
        raise UsageError(
            f"--bits 16 is for PNG, MKV and folders, and {path} holds 8: give one of those."
        )
    if terms.quality is not None and kind not in LOSSY:
        raise UsageError(f"--quality is for WebP and JPEG, and {path} is neither: leave it out.")
    if kind in PICTURE_KINDS:
        check_terms(path, bits=terms.bits, quality=terms.quality)


def open_frames(
    path: Path,
    *,
    width: int,
    height: int,
    frames: int | None,
    fps: Fraction | None = None,
    alpha: bool = False,
    sound: Sound | None = None,
    terms: Terms = PLAIN,
) -> FrameWriter:
    """A context manager that takes frames of this size and writes what the name of `path` says.

    `frames` is how many come, where that is known; `fps` None is 24. `notes` of what it gives says
    what had to be done to the picture, or was left out. Raises what the writers do.
    """
    kind, rate = _kind(path), fps or _RATE
    comment = "\n".join(f"{name}: {value}" for name, value in terms.text)
    if kind in PICTURE_KINDS and (frames == 1 or kind not in CLIP_KINDS):
        check_size(path, width=width, height=height)
        return _OnePicture(path, terms, sound)
    if kind in GIF_KINDS:
        return _with_notes(GifWriter(path, rate, comment=comment), path, sound)
    if kind == FOLDER:
        return _with_notes(FrameFolderWriter(path, bits=terms.bits), path, sound)
    from tightfit.media.clip_writer import ClipWriter  # PyAV: a still needs none

    return ClipWriter(
        path,
        width,
        height,
        rate,
        comment=comment,
        bits=terms.bits,
        alpha=alpha,
        quality=terms.quality,
        sound=sound,
    )


def _kind(path: Path) -> str:
    return FOLDER if path.is_dir() else path.suffix.lower()


def _with_notes(
    writer: GifWriter | FrameFolderWriter, path: Path, sound: Sound | None
) -> FrameWriter:
    if sound is not None:
        writer.notes = (*writer.notes, _no_sound(path))
    return writer


def _no_sound(path: Path) -> str:
    return f"left out the sound, which {path.suffix.lower() or 'a folder of frames'} does not hold"


class _OnePicture:
    """Takes one frame, and writes it at once."""

    def __init__(self, path: Path, terms: Terms, sound: Sound | None) -> None:
        self.notes: tuple[str, ...] = () if sound is None else (_no_sound(path),)
        self._path, self._terms, self._done = path, terms, False

    def __enter__(self) -> _OnePicture:
        return self

    def write(self, frames: torch.Tensor) -> None:
        for frame in frames:
            if self._done:
                raise JobFailed(f"Cannot write {self._path}: a second frame came.")
            terms = self._terms
            write_picture(
                self._path, frame, text=dict(terms.text), bits=terms.bits, quality=terms.quality
            )
            self._done = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._done:
            raise JobFailed(f"Nothing was written to {self._path}: no frame came.")
