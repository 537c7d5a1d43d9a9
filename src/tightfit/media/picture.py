"""One picture: read upright as RGB floats, written as PNG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from tightfit.errors import InputError
from tightfit.media import still
from tightfit.media.background import WHITE, Colour, composite, name_background
from tightfit.media.files import check_readable, check_writable, whole_file
from tightfit.media.samples import to_bytes

PICTURE_KINDS = (".png",)


@dataclass(frozen=True, eq=False)
class Picture:
    """An upright picture.

    Attributes:
        pixels: float32 [3,H,W] in 0..1, laid over the background where it was transparent.
        alpha: float32 [1,H,W] in 0..1; None where it was not asked for or not there.
        notes: what a report must say about the reading.
    """

    pixels: torch.Tensor
    alpha: torch.Tensor | None
    notes: tuple[str, ...]


def read_picture(path: Path, *, keep_alpha: bool = False, background: Colour = WHITE) -> Picture:
    """Read a PNG, JPEG or WebP, or the first frame of an animation.

    Colours come over `background` with or without `keep_alpha`, so that colour hidden under
    full transparency never shows; `lift` in `background.py` undoes that after a decode.
    Raises `InputError` where the file is missing, of another kind, cut off or damaged.
    """
    check_readable(path)
    try:
        with still.open_still(path) as image:
            turn = still.turn_of(image, path)
            left_out = still.frame_count(image) - 1 if still.is_moving(image) else 0
            planes = still.read_planes(image, path)
    except UnidentifiedImageError as error:
        raise InputError(
            f"Cannot read {path} as a picture: it is no PNG, JPEG, WebP or GIF; convert it to PNG."
        ) from error
    notes = []
    rgb = planes.rgb
    if planes.alpha is not None and planes.alpha.min() < 1:
        rgb = composite(rgb, planes.alpha, background)
        notes.append(f"composited alpha over {name_background(background)}")
    if left_out:
        notes.append(f"left out {left_out} further frame{'s' if left_out > 1 else ''}")
    kept = planes.alpha if keep_alpha else None
    return Picture(
        pixels=_channels_first(turn.apply(rgb)),
        alpha=None if kept is None else _channels_first(turn.apply(kept)),
        notes=tuple(notes),
    )


def write_picture(path: Path, pixels: torch.Tensor, *, text: Mapping[str, str] = {}) -> None:
    """Write RGB [3,H,W] or RGBA [4,H,W] with values in 0..1 as an 8-bit PNG.

    `text` is what stands in its text chunks, by keywords of at most 79 Latin-1 letters.

    Values are rounded to the nearest step; those beyond 0..1 are clamped. Raises `JobFailed` on
    NaN or infinite values and on another shape, `InputError` where the file cannot be written.
    """
    check_writable(path, PICTURE_KINDS)
    data = encode_png(to_bytes(pixels[None], goal=path, channels=(3, 4))[0], text=text)
    with whole_file(path, needs=len(data)) as temporary:
        temporary.write_bytes(data)


def read_text(path: Path) -> dict[str, str]:
    """What stands in the text chunks of a PNG; nothing where it is none, or is damaged."""
    try:
        with Image.open(path) as image:
            image.load()  # they may stand behind the pixels
            return dict(getattr(image, "text", {}))
    except (OSError, SyntaxError, ValueError):
        return {}


def encode_png(samples: torch.Tensor, *, text: Mapping[str, str] = {}) -> bytes:
    """The PNG file of uint8 samples [3,H,W] or [4,H,W], with `text` by its keywords."""
    file, chunks = BytesIO(), PngInfo()
    for keyword, value in text.items():
        chunks.add_itxt(keyword, value)
    to_pillow(samples).save(file, "PNG", pnginfo=chunks)
    return file.getvalue()


def to_pillow(samples: torch.Tensor) -> Image.Image:
    """uint8 samples [1,H,W] (grey), [3,H,W] or [4,H,W] as Pillow has them."""
    rows = np.ascontiguousarray(samples.permute(1, 2, 0).numpy())
    return Image.fromarray(rows[:, :, 0] if rows.shape[2] == 1 else rows)


def _channels_first(pixels: npt.NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
