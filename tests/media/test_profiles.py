"""Colour profiles of stills."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageCms, features

from tightfit.media.deep_png import encode
from tightfit.media.picture import Picture, read_picture
from tightfit.media.profiles import DAMAGED, LEFT_OUT

from .makers import noise

pytestmark = pytest.mark.skipif(
    not features.check("littlecms2"), reason="this Pillow was built without Little CMS"
)

ADOBE = ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457))
"""The primaries of Adobe RGB (1998), as XYZ at D50."""
GAMMA = struct.pack(">4sIIH", b"curv", 0, 1, round(2.19921875 * 256)) + b"\0\0"
TABLE = struct.pack(">4sII4096H", b"curv", 0, 4096, *range(0, 65536, 16))
FORMULA = struct.pack(
    ">4sIHH5i",
    b"para",
    0,
    3,
    0,
    *(round(each * 65536) for each in (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)),
)


def profile(curve: bytes = GAMMA, name: str = "Wide", space: bytes = b"RGB ") -> bytes:
    """A profile of a matrix and one curve for red, green and blue."""

    def point(values: tuple[float, ...]) -> bytes:
        return struct.pack(">4sI3i", b"XYZ ", 0, *(round(each * 65536) for each in values))

    text = struct.pack(">4sII", b"desc", 0, len(name) + 1) + name.encode() + b"\0" * 80
    bodies = {b"desc": text, b"wtpt": point((0.9642, 1.0, 0.8249)), b"cprt": b"text\0\0\0\0-\0\0\0"}
    bodies |= {f"{c}XYZ".encode(): point(each) for c, each in zip("rgb", ADOBE, strict=True)}
    bodies |= {f"{c}TRC".encode(): curve for c in "rgb"}
    tags, data, at = b"", b"", 132 + 12 * len(bodies)
    for key, body in bodies.items():
        tags += struct.pack(">4sII", key, at + len(data), len(body))
        data += body + b"\0" * (-len(body) % 4)
    head = struct.pack(
        ">I4sI4s4s4s12s4s", at + len(data), b"", 0x02100000, b"mntr", space, b"XYZ ", b"", b"acsp"
    )
    head = head.ljust(68, b"\0") + struct.pack(">3i", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + struct.pack(">I", len(bodies)) + tags + data


def steps(picture: Picture) -> np.ndarray:
    """[H,W,3] in 0..255."""
    return picture.pixels.permute(1, 2, 0).numpy() * 255


def by_hand(rgb: np.ndarray) -> np.ndarray:
    """From Adobe RGB in 0..1 to sRGB in 0..255."""
    xyz = (rgb.astype(np.float64) ** 2.19921875) @ np.array(ADOBE)
    to_srgb = np.array(
        [[3.1339, -1.6169, -0.4906], [-0.9788, 1.9161, 0.0335], [0.0719, -0.2290, 1.4052]]
    )
    linear = (xyz @ to_srgb.T).clip(0, 1)
    return 255 * np.where(linear < 0.0031, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.webp"])
def test_colours_are_converted_and_that_is_said(tmp_path: Path, name: str) -> None:
    """To sRGB, to a step or two: what the profile says, and not what is stored."""
    stored = noise(24, 16, 3) if name != "a.jpg" else np.full((24, 16, 3), (200, 90, 40), np.uint8)
    Image.fromarray(stored).save(
        tmp_path / name, icc_profile=profile(), **({"lossless": True} if name == "a.webp" else {})
    )
    picture = read_picture(tmp_path / name)
    assert np.abs(steps(picture) - by_hand(stored / 255)).max() < (6 if name == "a.jpg" else 2.5)
    assert picture.notes == ("converted the colours from `Wide` to sRGB",)


def test_the_usual_profile_changes_nothing(tmp_path: Path) -> None:
    """To the bit, and nothing is said."""
    usual = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    stored = noise(8, 8, 3)
    Image.fromarray(stored).save(tmp_path / "a.png", icc_profile=usual)
    picture = read_picture(tmp_path / "a.png")
    assert picture.notes == ()
    assert np.array_equal(np.rint(steps(picture)), stored)


@pytest.mark.parametrize(
    ("curve", "most"),
    [(GAMMA, 0.1), (TABLE, None), (FORMULA, None)],
    ids=["gamma", "table", "formula"],
)
def test_deep_colours_are_converted_in_full(
    tmp_path: Path, curve: bytes, most: float | None
) -> None:
    """16 bits and floats by matrix and curve: within a step of 8 bits of Little CMS, and finer."""
    stored = noise(24, 16, 3).astype(np.uint16) * 257
    chunk = b"wide\0\0" + zlib.compress(profile(curve))
    (tmp_path / "a.png").write_bytes(encode(stored, chunks=[(b"iCCP", chunk)]))
    Image.fromarray((stored // 257).astype(np.uint8)).save(
        tmp_path / "b.png", icc_profile=profile(curve)
    )
    deep, plain = (read_picture(tmp_path / name) for name in ("a.png", "b.png"))
    assert deep.bits == 16
    assert deep.notes == plain.notes == ("converted the colours from `Wide` to sRGB",)
    assert np.abs(steps(deep) - steps(plain)).max() < 1.5
    if most is not None:
        assert np.abs(steps(deep) - by_hand(stored / 65535)).max() < most


def test_transparency_is_kept(tmp_path: Path) -> None:
    """Alpha has no colour."""
    stored = noise(8, 8, 4)
    Image.fromarray(stored).save(tmp_path / "a.png", icc_profile=profile())
    picture = read_picture(tmp_path / "a.png", keep_alpha=True)
    assert picture.alpha is not None
    assert np.array_equal(np.rint(picture.alpha[0].numpy() * 255), stored[..., 3])


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    "broken",
    [b"nonsense", profile()[:200], profile(b"\0" * 16), profile(space=b"CMYK"), b""],
    ids=["nonsense", "cut", "no curve", "of another space", "none"],
)
def test_a_broken_profile_is_left_out_and_said(tmp_path: Path, broken: bytes, deep: bool) -> None:
    """The picture is read all the same."""
    stored = noise(8, 8, 3)
    samples = stored.astype(np.uint16) * 257 if deep else stored
    tifffile.imwrite(tmp_path / "a.tif", samples, photometric="rgb", iccprofile=broken or None)
    picture = read_picture(tmp_path / "a.tif")
    assert np.array_equal(np.rint(steps(picture)), stored)
    assert picture.notes in ([(DAMAGED,), (LEFT_OUT,)] if broken else [()])
