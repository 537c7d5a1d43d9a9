"""Writes one picture to PNG, WebP or JPEG, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tightfit.errors import InputError, UsageError
from tightfit.media import deep_png
from tightfit.media.files import check_writable, whole_file
from tightfit.media.samples import to_samples

PICTURE_KINDS = (".png", ".webp", ".jpg", ".jpeg")
LOSSY = (".webp", ".jpg", ".jpeg")
"""Where a quality means something."""
OPAQUE = (".jpg", ".jpeg")

_LARGEST = {".webp": 16383, ".jpg": 65500, ".jpeg": 65500}  # pixels along an axis
_JPEG_QUALITY = 95
USER_COMMENT, EXIF = 0x9286, 0x8769


def write_picture(
    path: Path,
    pixels: torch.Tensor,
    *,
    text: Mapping[str, str] = {},
    bits: int = 8,
    quality: int | None = None,
) -> None:
    """Write RGB [3,H,W] or RGBA [4,H,W] with values in 0..1.

    Args:
        path: PNG, WebP or JPEG by its suffix; a JPEG holds no alpha.
        pixels: rounded to the nearest step; those beyond 0..1 are clamped.
        text: what stands in its text chunks, by keywords of at most 79 Latin-1 letters, or in the
            EXIF comment of the kinds that have none.
        bits: 8, or 16 for PNG.
        quality: 1 to 100 for WebP, which is lossless without, and JPEG, which has 95.

    Raises `JobFailed` on NaN or infinite values and on another shape, `UsageError` on a depth or
    quality that the kind does not have, `InputError` where the file cannot be written.
    """
    check_writable(path, PICTURE_KINDS)
    check_terms(path, bits=bits, quality=quality)
    suffix = path.suffix.lower()
    channels = (3,) if suffix in OPAQUE else (3, 4)
    samples = to_samples(pixels[None], goal=path, channels=channels, bits=bits)[0]
    check_size(path, width=samples.shape[2], height=samples.shape[1])
    data = (
        encode_png(samples, text=text)
        if suffix == ".png"
        else _encode(samples, suffix, text, quality)
    )
    with whole_file(path, needs=len(data)) as temporary:
        temporary.write_bytes(data)


def check_terms(path: Path, *, bits: int, quality: int | None) -> None:
    """Raise `UsageError` on a depth or a quality that a picture of this name does not have."""
    suffix = path.suffix.lower()
    if bits not in (8, 16):
        raise UsageError(f"--bits `{bits}` is no depth of a picture: 8 or 16.")
    if bits == 16 and suffix != ".png":
        raise UsageError(f"--bits 16 is for PNG, and {path} holds 8 bits: give a .png.")
    if quality is not None and suffix not in LOSSY:
        raise UsageError(f"--quality is for WebP and JPEG, and {path} is neither: leave it out.")
    if quality is not None and not 1 <= quality <= 100:
        raise UsageError(f"--quality `{quality}` is beyond 1 to 100.")


def check_size(path: Path, *, width: int, height: int) -> None:
    """Raise `InputError` on a size that a picture of this name does not hold."""
    largest = _LARGEST.get(path.suffix.lower())
    if largest is not None and max(width, height) > largest:
        raise InputError(
            f"Cannot write {path}: {width}x{height} is more than the {largest} pixels along an "
            "axis that it holds; write a .png."
        )


def read_text(path: Path) -> dict[str, str]:
    """What stands in the text chunks of a PNG; nothing where it is none, or is damaged."""
    try:
        with Image.open(path) as image:
            image.load()  # they may stand behind the pixels
            return dict(getattr(image, "text", {}))
    except (OSError, SyntaxError, ValueError):
        return {}


def encode_png(samples: torch.Tensor, *, text: Mapping[str, str] = {}) -> bytes:
    """The PNG file of uint8 or uint16 samples [3,H,W] or [4,H,W], with `text` by its keywords."""
    file, chunks = BytesIO(), PngInfo()
    for keyword, value in text.items():
        chunks.add_itxt(keyword, value)
    if samples.dtype == torch.uint16:
        rows = np.ascontiguousarray(samples.permute(1, 2, 0).numpy())
        return deep_png.encode(rows, chunks=[(name, data) for name, data, *_ in chunks.chunks])
    to_pillow(samples).save(file, "PNG", pnginfo=chunks)
    return file.getvalue()


def to_pillow(samples: torch.Tensor) -> Image.Image:
    """uint8 samples [1,H,W] (grey), [3,H,W] or [4,H,W] as Pillow has them."""
    rows = np.ascontiguousarray(samples.permute(1, 2, 0).numpy())
    return Image.fromarray(rows[:, :, 0] if rows.shape[2] == 1 else rows)


def _encode(
    samples: torch.Tensor, suffix: str, text: Mapping[str, str], quality: int | None
) -> bytes:
    file = BytesIO()
    exif = Image.Exif()
    if text:
        said = "\n".join(f"{name}: {value}" for name, value in text.items())
        # EXIF 2.32, 4.6.5: the name of the character code, then the text.
        exif.get_ifd(EXIF)[USER_COMMENT] = b"UNICODE\0" + said.encode("utf-16-be")
    if suffix == ".webp":
        lossy = {"quality": quality} if quality is not None else {"lossless": True, "exact": True}
        to_pillow(samples).save(file, "WEBP", exif=exif, method=4, **lossy)
    else:
        given = _JPEG_QUALITY if quality is None else quality
        fine = 0 if given >= 90 else -1  # colour at full resolution, or as libjpeg has it
        to_pillow(samples).save(file, "JPEG", quality=given, subsampling=fine, exif=exif)
    return file.getvalue()
