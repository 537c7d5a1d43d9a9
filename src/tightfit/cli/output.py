"""What is asked of an output, before any model is loaded."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from tightfit.errors import UsageError
from tightfit.media.latents import LatentFile, probe_latent
from tightfit.media.outputs import PLAIN, WITH_SOUND, Terms, check_frames
from tightfit.media.sound import SOUND_KINDS, Sound, SoundPart, check_sound, read_sound


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
