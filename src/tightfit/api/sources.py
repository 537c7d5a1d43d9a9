"""Reading what is to be encoded: a path to a picture, a clip, frames or sound, or a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from tightfit.errors import InputError, UsageError
from tightfit.media.background import Colour
from tightfit.media.clip import Clip, Seconds, read_clip
from tightfit.media.frame_folder import read_frame_folder
from tightfit.media.info import MediaInfo, look_into, probe
from tightfit.media.picture import read_picture
from tightfit.media.samples import as_floats
from tightfit.media.shots import Follower, Source
from tightfit.media.sound import Sound, SoundPart, read_sound
from tightfit.run.vae import Traits

_MOST_PIXELS = 2**31


@dataclass(frozen=True, eq=False)
class Footage:
    """Frames on the host.

    Attributes:
        frames: [T,3,H,W], float in 0..1, uint8 or uint16; [0,3,0,0] of sound alone.
        fps: None for pictures.
        alpha: [T,1,H,W] in 0..1, where it was kept.
        background: what alpha was laid over, where there was any.
        about: for the report.
        notes: what the reader did to the picture.
        sound: what is heard while the frames are shown.
    """

    frames: torch.Tensor
    fps: Fraction | None = None
    alpha: torch.Tensor | None = None
    background: Colour | None = None
    about: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sound: Sound | None = None


@dataclass(frozen=True)
class Selection:
    """Which frames of a clip, and how alpha is treated.

    Attributes:
        frames: a slice of frame numbers, None for all.
        fps: pick frames by time at this rate.
        seconds: pick what is shown, or heard, within this span.
        keep_alpha: keep alpha beside the picture.
        background: what alpha is laid over.
    """

    frames: slice | None = None
    fps: Fraction | None = None
    seconds: Seconds | None = None
    keep_alpha: bool = False
    background: Colour = (1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Seen:
    """What can be known of a source before it is read.

    Attributes:
        info: of a file or folder; None of a tensor.
        film: its frames, where it is a film and open.
    """

    info: MediaInfo | None = None
    film: Source | None = None


@contextmanager
def looking(source: str | Path | torch.Tensor, selection: Selection) -> Iterator[Seen]:
    """Look at a source, and keep a film open meanwhile: its first frames are decoded.

    Raises `InputError`, `UsageError`.
    """
    if isinstance(source, torch.Tensor):
        _check_tensor(source)
        yield Seen()
        return
    with look_into(Path(source)) as (info, film):
        _check(source, info, selection)
        yield Seen(info, film)


def look(source: str | Path | torch.Tensor, selection: Selection) -> MediaInfo | None:
    """What can be known before reading; None for a tensor. Raises `InputError`, `UsageError`."""
    if isinstance(source, torch.Tensor):
        _check_tensor(source)
        return None
    info = probe(Path(source))
    _check(source, info, selection)
    return info


def _check(source: str | Path, info: MediaInfo, selection: Selection) -> None:
    if info.kind != "clip" and (selection.frames is not None or selection.fps is not None):
        what = info.kind if info.kind == "sound" else "a picture"
        raise UsageError(f"--frames and --fps pick frames of a clip, and {source} is {what}.")
    if info.kind == "picture" and selection.seconds is not None:
        raise UsageError(f"--seconds picks a part of a clip, and {source} is a picture.")
    if info.width * info.height > _MOST_PIXELS:
        raise InputError(f"{source} has {info.width}x{info.height} pixels: too many to read.")


def read(
    source: str | Path | torch.Tensor,
    selection: Selection,
    seen: Seen | None = None,
    traits: Traits | None = None,
    follower: Follower | None = None,
) -> Footage:
    """Read what was `seen`, for a VAE of these `traits`: sound for one of sound.

    `follower` is told of each frame of a clip.

    Raises `InputError` where the file is damaged, `UsageError` where the VAE takes something else.
    """
    if traits is not None and traits.axes == 1:
        return _sound(source, selection, traits)
    if isinstance(source, torch.Tensor):
        frames = source.unsqueeze(0) if source.dim() == 3 else source
        return Footage(frames, about=_about("tensor", None, frames, None))
    path = Path(source)
    info = (seen.info if seen is not None else None) or probe(path)
    if info.kind == "sound":
        raise UsageError(f"{source} is sound, and the VAE takes pictures: give --vae one of sound.")
    if info.kind == "picture":
        return _picture(path, selection, info)
    clip = _clip(path, selection, None if seen is None else seen.film, follower)
    sound = None if clip.sound is None else read_sound(path, clip.sound)
    return Footage(
        clip.pixels,
        fps=clip.fps,
        alpha=None if clip.alpha is None else as_floats(clip.alpha),
        background=selection.background if info.has_alpha or clip.alpha is not None else None,
        about=_about("clip", path, clip.pixels, clip.fps),
        notes=clip.notes if sound is None else (*clip.notes, *sound.notes),
        sound=sound,
    )


def _picture(path: Path, selection: Selection, info: MediaInfo) -> Footage:
    picture = read_picture(path, keep_alpha=selection.keep_alpha, background=selection.background)
    frames = picture.pixels.unsqueeze(0)
    return Footage(
        frames,
        alpha=picture.alpha.unsqueeze(0) if picture.alpha is not None else None,
        background=selection.background if info.has_alpha else None,
        about=_about("picture", path, frames, None),
        notes=picture.notes,
    )


def _clip(path: Path, selection: Selection, film: Source | None, follower: Follower | None) -> Clip:
    terms: dict[str, Any] = {
        "follower": follower,
        "frames": selection.frames,
        "seconds": selection.seconds,
        "background": selection.background,
        "keep_alpha": selection.keep_alpha,
    }
    if path.is_dir():
        return read_frame_folder(path, fps=selection.fps or Fraction(24), **terms)
    return read_clip(path, fps=selection.fps, opened=film, **terms)


def _sound(source: str | Path | torch.Tensor, selection: Selection, traits: Traits) -> Footage:
    """At the rate and with the channels that the VAE takes."""
    if isinstance(source, torch.Tensor):
        sound = Sound(source.float(), traits.rate or 1)
    else:
        start, stop = selection.seconds or (Fraction(), None)
        part = SoundPart(start, None if stop is None else stop - start)
        sound = read_sound(
            Path(source),
            None if selection.seconds is None else part,
            rate=traits.rate,
            channels=traits.channels,
        )
    return Footage(
        torch.zeros(0, 3, 0, 0),
        about={
            "kind": "sound",
            "path": None if isinstance(source, torch.Tensor) else str(source),
            "channels": sound.samples.shape[0],
            "samples": sound.samples.shape[1],
            "rate": sound.rate,
        },
        notes=sound.notes,
        sound=sound,
    )


def _about(
    kind: str, path: Path | None, frames: torch.Tensor, fps: Fraction | None
) -> dict[str, Any]:
    return {
        "kind": kind,
        "path": None if path is None else str(path),
        "frames": frames.shape[0],
        "width": frames.shape[-1],
        "height": frames.shape[-2],
        "fps": None if fps is None else float(fps),
    }


def _check_tensor(source: torch.Tensor) -> None:
    if source.dim() != 2 and (source.dim() not in (3, 4) or source.shape[-3] != 3):
        raise UsageError(
            f"a tensor to encode is [3,H,W] or [T,3,H,W] in 0..1 or uint8, or sound [C,L], not "
            f"{tuple(source.shape)}."
        )
    if source.numel() == 0:
        raise UsageError(f"a tensor to encode holds values, and {tuple(source.shape)} has none.")
    if not source.is_floating_point() and source.dtype not in (torch.uint8, torch.uint16):
        raise UsageError(f"a tensor to encode is in 0..1 or uint8, not {source.dtype}.")
    if source.device.type != "cpu":
        raise UsageError(f"a tensor to encode lies on the host, not on {source.device}.")
