"""Reading what is to be encoded: a path to a picture, a clip or frames, or a tensor."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from tightfit.errors import InputError, UsageError
from tightfit.media.background import Colour
from tightfit.media.clip import read_clip
from tightfit.media.frame_folder import read_frame_folder
from tightfit.media.info import MediaInfo, probe
from tightfit.media.picture import read_picture

_MOST_PIXELS = 2**31


@dataclass(frozen=True, eq=False)
class Footage:
    """Frames on the host.

    Attributes:
        frames: [T,3,H,W], float in 0..1 or uint8.
        fps: None for pictures.
        alpha: [1,1,H,W] in 0..1, where it was kept.
        background: what alpha was laid over, where there was any.
        about: for the report.
        notes: what the reader did to the picture.
    """

    frames: torch.Tensor
    fps: Fraction | None = None
    alpha: torch.Tensor | None = None
    background: Colour | None = None
    about: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Selection:
    """Which frames of a clip, and how alpha is treated.

    Attributes:
        frames: a slice of frame numbers, None for all.
        fps: pick frames by time at this rate.
        keep_alpha: keep alpha beside the picture.
        background: what alpha is laid over.
    """

    frames: slice | None = None
    fps: Fraction | None = None
    keep_alpha: bool = False
    background: Colour = (1.0, 1.0, 1.0)


def look(source: str | Path | torch.Tensor, selection: Selection) -> MediaInfo | None:
    """What can be known before reading; None for a tensor. Raises `InputError`, `UsageError`."""
    if isinstance(source, torch.Tensor):
        _check_tensor(source)
        return None
    info = probe(Path(source))
    if info.kind == "picture" and (selection.frames is not None or selection.fps is not None):
        raise UsageError(f"--frames and --fps pick frames of a clip, and {source} is a picture.")
    if info.kind == "clip" and info.has_alpha and selection.keep_alpha:
        raise UsageError(
            f"--keep-alpha keeps the alpha of a picture, and {source} is a clip: leave it out, or "
            "encode its frames one by one."
        )
    if info.width * info.height > _MOST_PIXELS:
        raise InputError(f"{source} has {info.width}x{info.height} pixels: too many to read.")
    return info


def read(source: str | Path | torch.Tensor, selection: Selection) -> Footage:
    """Read the frames. Raises `InputError` where the file is damaged."""
    if isinstance(source, torch.Tensor):
        frames = source.unsqueeze(0) if source.dim() == 3 else source
        return Footage(frames, about=_about("tensor", None, frames, None))
    path = Path(source)
    info = probe(path)
    if info.kind == "picture":
        picture = read_picture(
            path, keep_alpha=selection.keep_alpha, background=selection.background
        )
        alpha = picture.alpha.unsqueeze(0) if picture.alpha is not None else None
        frames = picture.pixels.unsqueeze(0)
        return Footage(
            frames,
            alpha=alpha,
            background=selection.background if info.has_alpha else None,
            about=_about("picture", path, frames, None),
            notes=picture.notes,
        )
    if path.is_dir():
        clip = read_frame_folder(
            path,
            fps=selection.fps or Fraction(24),
            frames=selection.frames,
            background=selection.background,
        )
    else:
        clip = read_clip(
            path, frames=selection.frames, fps=selection.fps, background=selection.background
        )
    return Footage(
        clip.pixels,
        fps=clip.fps,
        about=_about("clip", path, clip.pixels, clip.fps),
        notes=clip.notes,
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
    if source.dim() not in (3, 4) or source.shape[-3] != 3:
        raise UsageError(
            f"a tensor to encode is [3,H,W] or [T,3,H,W] in 0..1 or uint8, not "
            f"{tuple(source.shape)}."
        )
    if source.numel() == 0:
        raise UsageError(f"a tensor to encode holds pixels, and {tuple(source.shape)} has none.")
    if not source.is_floating_point() and source.dtype != torch.uint8:
        raise UsageError(f"a tensor to encode is in 0..1 or uint8, not {source.dtype}.")
    if source.device.type != "cpu":
        raise UsageError(f"a tensor to encode lies on the host, not on {source.device}.")
