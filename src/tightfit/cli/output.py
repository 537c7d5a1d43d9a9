"""Writing decoded frames and sound in the form that the output's name asks for."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from tightfit.api import Frames
from tightfit.errors import UsageError
from tightfit.media.latents import LatentFile, probe_latent
from tightfit.media.outputs import PLAIN, WITH_SOUND, Terms, check_frames, open_frames
from tightfit.media.samples import count_bad
from tightfit.media.sound import (
    SOUND_KINDS,
    Sound,
    SoundPart,
    check_sound,
    read_sound,
    write_sound,
)

_CHUNK = 16


def check_output(out: Path, latent: Path, terms: Terms = PLAIN, sound: Path | None = None) -> None:
    """Refuse, before any model is loaded, an output that cannot hold what `latent` holds.

    `sound` is a file whose sound is to go with the frames.
    """
    header = probe_latent(latent)
    heard = any(each.latent.dim() == 3 for each in header.streams.values())
    if is_sound(header) or (heard and out.suffix.lower() in SOUND_KINDS):
        check_sound(out)
        if sound is not None or terms != PLAIN:
            raise UsageError(f"{latent} is of sound: --sound, --bits and --quality are for frames.")
        return
    if out.suffix.lower() in SOUND_KINDS:
        raise UsageError(f"{latent} is of pictures, and {out} is sound: give an .mp4 or a folder.")
    check_frames(
        out, terms, frames=header.pictures, alpha=header.alpha is not None, what=str(latent)
    )
    if sound is not None:
        if out.suffix.lower() not in WITH_SOUND:
            raise UsageError(f"--sound goes into an .mp4 or .mkv, and {out} is neither.")
        read_sound(sound, SoundPart(length=Fraction(1, 100)))


def is_sound(header: LatentFile) -> bool:
    """Whether a VAE of sound made it."""
    return header.latent.dim() == 3


def sound_for(latent: Path, sound: Path | None) -> Sound | None:
    """The sound of the file from its beginning, for as long as the frames of `latent` are shown."""
    if sound is None:
        return None
    header = probe_latent(latent)
    frames = header.pictures or header.latent.shape[0]
    return read_sound(sound, SoundPart(length=frames / (header.fps or Fraction(24))))


def write_output(
    out: Path, frames: Frames, terms: Terms = PLAIN, *, allow_nan: bool = False
) -> tuple[str, ...]:
    """Write `frames` to `out`; what had to be done to the picture for it.

    Values that are not finite are refused by the writers, or, with `allow_nan`, written as black.
    """
    if not frames.pixels.shape[0] and frames.sound is not None:
        write_sound(out, frames.sound)
        return ()
    bad = count_bad(frames.pixels) if allow_nan else 0
    if bad:
        frames = replace(frames, pixels=frames.pixels.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
        said = f"{bad} values that are not finite were written as black"
        return (said, *_write(out, frames, terms))
    return _write(out, frames, terms)


def _write(out: Path, frames: Frames, terms: Terms) -> tuple[str, ...]:
    count, channels, height, width = frames.pixels.shape
    with open_frames(
        out,
        width=width,
        height=height,
        frames=count,
        fps=frames.fps,
        alpha=channels == 4,
        sound=frames.sound,
        terms=terms,
    ) as writer:
        for start in range(0, count, _CHUNK):
            writer.write(frames.pixels[start : start + _CHUNK])
    return writer.notes
