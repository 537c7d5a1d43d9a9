"""One picture, read upright as RGB floats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import UnidentifiedImageError

from tightfit.errors import InputError
from tightfit.media import still
from tightfit.media.background import WHITE, Colour, composite, name_background
from tightfit.media.files import check_readable


@dataclass(frozen=True, eq=False)
class Picture:
    """An upright picture.

    Attributes:
        pixels: float32 [3,H,W] in 0..1, laid over the background where it was transparent.
        alpha: float32 [1,H,W] in 0..1; None where it was not asked for or not there.
        notes: what a report must say about the reading.
        bits: a sample in the file; 32 for floats.
    """

    pixels: torch.Tensor
    alpha: torch.Tensor | None
    notes: tuple[str, ...]
    bits: int = 8


def read_picture(path: Path, *, keep_alpha: bool = False, background: Colour = WHITE) -> Picture:
    """Read a PNG, JPEG, WebP, TIFF or AVIF, or the first frame of an animation.

    Colours come over `background` with or without `keep_alpha`, so that colour hidden under
    full transparency never shows; `lift` in `background.py` undoes that after a decode.
    Raises `InputError` where the file is missing, of another kind, cut off or damaged.
    """
    check_readable(path)
    try:
        with still.open_still(path) as image:
            turn = still.turn_of(image, path)
            left_out = still.frame_count(image) - 1
            further = "frame" if still.is_moving(image) else "picture"
            further = "page" if image.format == "TIFF" else further
            planes = still.read_planes(image, path)
    except UnidentifiedImageError as error:
        raise InputError(
            f"Cannot read {path} as a picture: it is none that can be read ({still.KINDS}); "
            "convert it to PNG."
        ) from error
    notes = list(planes.notes)
    rgb = planes.rgb
    if planes.alpha is not None and planes.alpha.min() < 1:
        rgb = composite(rgb, planes.alpha, background)
        notes.append(f"composited alpha over {name_background(background)}")
    if left_out:
        notes.append(f"left out {left_out} further {further}{'s' if left_out > 1 else ''}")
    kept = planes.alpha if keep_alpha else None
    return Picture(
        pixels=_channels_first(turn.apply(rgb)),
        alpha=None if kept is None else _channels_first(turn.apply(kept)),
        notes=tuple(notes),
        bits=planes.bits,
    )


def _channels_first(pixels: npt.NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
