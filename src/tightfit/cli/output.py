"""Writing decoded frames in the form that the output's name asks for."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from tightfit.api import Frames
from tightfit.errors import UsageError
from tightfit.media.clip_writer import CLIP_KINDS, ClipWriter
from tightfit.media.files import FOLDER, check_writable
from tightfit.media.frame_folder import FrameFolderWriter
from tightfit.media.latents import probe_latent
from tightfit.media.picture import PICTURE_KINDS, write_picture
from tightfit.media.samples import count_bad

_RATE = Fraction(24)
_CHUNK = 16


def check_output(out: Path, latent: Path) -> None:
    """Refuse, before any model is loaded, an output that cannot hold what `latent` holds."""
    check_writable(out, (*PICTURE_KINDS, *CLIP_KINDS, FOLDER))
    header = probe_latent(latent)
    if header.pictures > 1 and out.suffix.lower() in PICTURE_KINDS:
        raise UsageError(
            f"{latent} holds {header.pictures} frames, and {out} is one picture: give an .mp4 or a "
            "folder."
        )
    if header.alpha is not None and out.suffix.lower() in CLIP_KINDS:
        raise UsageError(f"{latent} keeps alpha, and {out} holds none: give a .png or a folder.")


def write_output(out: Path, frames: Frames, *, allow_nan: bool = False) -> tuple[str, ...]:
    """Write `frames` to `out`; what had to be done to the picture for it.

    Values that are not finite are refused by the writers, or, with `allow_nan`, written as black.
    """
    bad = count_bad(frames.pixels) if allow_nan else 0
    if bad:
        frames = replace(frames, pixels=frames.pixels.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
        return (f"{bad} values that are not finite were written as black", *_write(out, frames))
    return _write(out, frames)


def _write(out: Path, frames: Frames) -> tuple[str, ...]:
    if out.suffix.lower() in PICTURE_KINDS:
        write_picture(out, frames.pixels[0])
        return ()
    count, _, height, width = frames.pixels.shape
    if out.suffix.lower() in CLIP_KINDS:
        with ClipWriter(out, width, height, frames.fps or _RATE) as writer:
            for start in range(0, count, _CHUNK):
                writer.write(frames.pixels[start : start + _CHUNK])
        return writer.notes
    with FrameFolderWriter(out) as folder:
        for start in range(0, count, _CHUNK):
            folder.write(frames.pixels[start : start + _CHUNK])
    return ()
