"""Colour profiles of stills: what they make of samples, as sRGB.

Pictures of 8 bits, grey and print colours go through Little CMS, which Pillow brings. It knows no
more bits than that here, so deep RGB goes by the profile's own matrix and curves (ICC.1:2010, 9.2
and F.3), where it has these.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

LEFT_OUT = "left out the picture's colour profile; colours are taken for sRGB"
DAMAGED = "left out the picture's colour profile, which is damaged; colours are taken for sRGB"

_SRGB = (
    (0.4360747, 0.3850649, 0.1430804),
    (0.2225045, 0.7168786, 0.0606169),
    (0.0139322, 0.0971045, 0.7141733),
)
"""From linear sRGB to XYZ at D50, the white of profiles: IEC 61966-2-1 by Bradford's method."""
_RGB, _XYZ = b"RGB ", b"XYZ "
_MOST_TAGS = 100
_LETTERS = 60
_MIX = 2**20
"""Pixels that are mixed together."""


class _Damaged(Exception):
    """What stands in a profile makes no sense."""


def is_usual(profile: bytes | None) -> bool:
    """Whether there is none, or it says that it is sRGB: its description stands in it as text,
    ICC.1:2010, 9.2.41 and 10.13.
    """
    return profile is None or b"sRGB" in profile or "sRGB".encode("utf-16-be") in profile


def in_srgb(image: Image.Image, profile: bytes | None) -> tuple[Image.Image, tuple[str, ...]]:
    """An image of 8 bits a sample as RGB or RGBA, by its profile, and what is to be said of that.

    Raises `ValueError` where its mode is turned to neither.
    """
    alpha = image.has_transparency_data
    plain = image.convert("RGBA" if alpha else "RGB")
    if image.mode == "CMYK" and profile is None:
        return plain, ("read print colours (CMYK) without a profile",)
    if is_usual(profile):
        return plain, ()
    assert profile is not None
    try:
        from PIL import ImageCms
    except ImportError:  # this Pillow was built without it
        return plain, (LEFT_OUT,)
    try:
        own = ImageCms.ImageCmsProfile(BytesIO(profile))
        space = str(own.profile.xcolor_space).strip()
        if (space == "CMYK") != (image.mode == "CMYK"):
            return plain, (DAMAGED,)
        given = plain.convert("L" if space == "GRAY" else "RGB")
        given = image if space == "CMYK" else given
        made = ImageCms.profileToProfile(
            given,
            own,
            ImageCms.createProfile("sRGB"),
            renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
            outputMode="RGB",
            flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
        name = ImageCms.getProfileDescription(own)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return plain, (DAMAGED,)
    assert made is not None
    if alpha:
        made.putalpha(plain.getchannel("A"))
    return made, (_converted(name),)


def deep_in_srgb(
    rgb: npt.NDArray[np.float32], profile: bytes | None
) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """Samples [H,W,3] in 0..1 by a profile of a matrix and curves; what it cannot be is left out.

    Colours that sRGB does not hold are clamped.
    """
    if is_usual(profile):
        return rgb, ()
    assert profile is not None
    try:
        way = _Way.of(profile)
    except (_Damaged, struct.error, ValueError, IndexError, np.linalg.LinAlgError):
        return rgb, (DAMAGED,)
    if way is None:
        return rgb, (LEFT_OUT,)
    return way.convert(rgb), (_converted(way.name),)


def _converted(name: str) -> str:
    plain = "".join(each if each.isprintable() else " " for each in name)
    shown = " ".join(plain.split())[:_LETTERS]
    return f"converted the colours from `{shown}` to sRGB" if shown else "converted to sRGB"


@dataclass(frozen=True, eq=False)
class _Way:
    """From a profile's RGB to sRGB.

    Attributes:
        curves: of red, green and blue, each at equal steps from 0 to 1.
        matrix: between the linear values.
        name: of the profile.
    """

    curves: tuple[npt.NDArray[np.float64], ...]
    matrix: npt.NDArray[np.float64]
    name: str

    @classmethod
    def of(cls, profile: bytes) -> _Way | None:
        """None of a profile of another kind."""
        if len(profile) < 132 or profile[36:40] != b"acsp":
            raise _Damaged
        if profile[16:20] != _RGB or profile[20:24] != _XYZ:
            return None
        tags = _tags(profile)
        names = [f"{colour}{kind}".encode() for kind in ("XYZ", "TRC") for colour in "rgb"]
        if not all(name in tags for name in names):
            return None
        columns = np.array([_point(tags[name]) for name in names[:3]]).T
        matrix = np.linalg.inv(np.array(_SRGB)) @ columns
        if not np.isfinite(matrix).all():
            raise _Damaged
        return cls(tuple(_curve(tags[name]) for name in names[3:]), matrix, _text(tags))

    def convert(self, rgb: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Of [H,W,3] in 0..1."""
        made = np.empty_like(rgb)
        rows = max(1, _MIX // max(1, rgb.shape[1]))
        for start in range(0, rgb.shape[0], rows):
            part = rgb[start : start + rows]
            linear = np.stack(
                [
                    np.interp(part[..., at], np.linspace(0, 1, len(curve)), curve)
                    for at, curve in enumerate(self.curves)
                ],
                axis=-1,
            )
            mixed = (linear @ self.matrix.T).clip(0, 1)
            made[start : start + rows] = np.where(
                mixed <= 0.0031308, 12.92 * mixed, 1.055 * mixed ** (1 / 2.4) - 0.055
            )
        return made


def _tags(profile: bytes) -> dict[bytes, bytes]:
    (count,) = struct.unpack_from(">I", profile, 128)
    if count > _MOST_TAGS:
        raise _Damaged
    found = {}
    for at in range(count):
        name, start, size = struct.unpack_from(">4sII", profile, 132 + 12 * at)
        if start + size > len(profile):
            raise _Damaged
        found[name] = profile[start : start + size]
    return found


def _point(tag: bytes) -> tuple[float, ...]:
    """An XYZ, ICC.1:2010, 10.31."""
    if tag[:4] != _XYZ:
        raise _Damaged
    return tuple(value / 65536 for value in struct.unpack_from(">3i", tag, 8))


def _curve(tag: bytes) -> npt.NDArray[np.float64]:
    """A curve, ICC.1:2010, 10.5, or a formula, 10.18, as a table; from 0 to 1."""
    steps = np.linspace(0, 1, 4096)
    if tag[:4] == b"curv":
        (count,) = struct.unpack_from(">I", tag, 8)
        if count == 0:
            return np.array([0.0, 1.0])
        if count == 1:
            (gamma,) = struct.unpack_from(">H", tag, 12)
            return np.asarray(steps ** (gamma / 256))
        return np.frombuffer(tag, ">u2", count, 12) / 65535
    if tag[:4] != b"para":
        raise _Damaged
    (kind,) = struct.unpack_from(">H", tag, 8)
    if kind > 4:
        raise _Damaged
    counts = (1, 3, 4, 5, 7)
    g, *rest = (each / 65536 for each in struct.unpack_from(f">{counts[kind]}i", tag, 12))
    return _formula(steps, kind, g, rest)


def _formula(
    x: npt.NDArray[np.float64], kind: int, g: float, rest: list[float]
) -> npt.NDArray[np.float64]:
    """ICC.1:2010, table 65."""
    a, b, c, d, e, f = (*rest, *[0.0] * 6)[:6]
    with np.errstate(all="ignore"):
        if kind == 0:
            made = x**g
        elif kind in (1, 2):
            above = np.maximum(a * x + b, 0) ** g
            made = np.where(a * x + b >= 0, above, 0) + (c if kind == 2 else 0)
        else:
            above = np.maximum(a * x + b, 0) ** g + e
            made = np.where(x >= d, above, c * x + f)
    if not np.isfinite(made).all():
        raise _Damaged
    return np.asarray(made.clip(0, 1))


def _text(tags: dict[bytes, bytes]) -> str:
    """What the profile is called: a text of version 2, or the first of version 4."""
    tag: Any = tags.get(b"desc", b"")
    if tag[:4] == b"desc":
        (size,) = struct.unpack_from(">I", tag, 8)
        return str(tag[12 : 12 + size].decode("latin-1").rstrip("\0"))
    if tag[:4] == b"mluc":
        size, start = struct.unpack_from(">II", tag, 20)
        return str(tag[start : start + size].decode("utf-16-be", "replace"))
    return ""
