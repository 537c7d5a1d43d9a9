"""TIFF files of floats."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from tightfit.errors import InputError
from tightfit.media.info import probe
from tightfit.media.picture import read_picture

BLACK = (0.0, 0.0, 0.0)


def floats(*shape: int, kind: str = "f4") -> np.ndarray:
    """Random, in 0..1."""
    return np.random.default_rng(0).random(shape).astype(kind)


def shown(path: Path, **terms: Any) -> np.ndarray:
    """[H,W,3]."""
    return read_picture(path, **terms).pixels.permute(1, 2, 0).numpy()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"compression": "zlib"},
        {"rowsperstrip": 7},
        {"tile": (16, 32)},
        {"tile": (16, 16), "compression": "zlib"},
        {"planarconfig": "separate"},
        {"planarconfig": "separate", "tile": (16, 16), "compression": "zlib"},
    ],
    ids=str,
)
def test_floats_of_three_channels_are_read_as_they_are(
    tmp_path: Path, kind: str, order: str, terms: dict[str, Any]
) -> None:
    """However they lie in the file."""
    stored = floats(20, 37, 3, kind=kind)
    given = np.moveaxis(stored, 2, 0) if "planarconfig" in terms else stored
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, given, photometric="rgb", byteorder=order, **terms)
    picture = read_picture(path)
    assert (picture.bits, picture.notes) == (32, ())
    assert np.array_equal(shown(path), stored.astype(np.float32))
    assert (probe(path).width, probe(path).height) == (37, 20)


@pytest.mark.parametrize("kind", ["f2", "f8"])
def test_grey_floats_of_other_widths_are_read(tmp_path: Path, kind: str) -> None:
    """As those of 32 bits."""
    stored = floats(20, 30, kind=kind)
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="minisblack")
    expected = np.repeat(stored[:, :, None], 3, axis=2).astype(np.float32)
    assert np.abs(shown(tmp_path / "a.tif") - expected).max() < 1e-7


@pytest.mark.parametrize("kept", ["unassalpha", "assocalpha"])
def test_their_alpha_is_kept_or_laid_over_a_background(tmp_path: Path, kept: str) -> None:
    """Also where colours were multiplied by it."""
    stored = floats(20, 30, 4)
    stored[:4, :, 3] = 0
    given = stored.copy()
    if kept == "assocalpha":
        given[:, :, :3] *= stored[:, :, 3:]
    tifffile.imwrite(tmp_path / "a.tif", given, photometric="rgb", extrasamples=[kept])
    assert probe(tmp_path / "a.tif").has_alpha
    picture = read_picture(tmp_path / "a.tif", keep_alpha=True, background=BLACK)
    assert picture.alpha is not None
    assert np.array_equal(picture.alpha[0].numpy(), stored[:, :, 3])
    expected = stored[:, :, :3] * stored[:, :, 3:]
    assert np.abs(shown(tmp_path / "a.tif", background=BLACK) - expected).max() < 1e-6


def by_hand(path: Path, stored: np.ndarray, predictor: int, order: str, turned: int = 1) -> Path:
    """One Deflate strip of differences, TIFF technical note 3, or of TIFF 6.0, section 14."""
    height, width, count = stored.shape
    size = stored.itemsize
    if predictor == 3:
        values = stored.astype(f">f{size}").reshape(height, -1)
        raw = np.moveaxis(values.view(np.uint8).reshape(height, -1, size), 2, 1)
        flat = raw.reshape(height, width * size, count)
    else:
        flat = stored.view(f"u{size}").reshape(height, width, count)
    moved = flat.copy()
    moved[:, 1:] -= flat[:, :-1]
    packed = zlib.compress(moved.astype(moved.dtype.newbyteorder(order)).tobytes())
    entries: list[tuple[int, int, int, int]] = [
        (256, 4, 1, width), (257, 4, 1, height), (258, 3, 3, 8), (259, 3, 1, 8), (262, 3, 1, 2),
        (273, 4, 1, 20), (274, 3, 1, turned), (277, 3, 1, 3), (278, 4, 1, height),
        (279, 4, 1, len(packed)), (317, 3, 1, predictor), (339, 3, 3, 14),
    ]  # fmt: skip
    data = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(
        f"{order}I", 20 + len(packed) + len(packed) % 2
    )
    data += struct.pack(f"{order}6H", *(3 * [8 * size]), *(3 * [3]))
    data += packed + b"\0" * (len(packed) % 2) + struct.pack(f"{order}H", len(entries))
    for tag, kind, number, value in entries:
        short = kind == 3 and number == 1
        form = f"{order}HHI" + ("HH" if short else "I")
        data += struct.pack(form, tag, kind, number, *((value, 0) if short else (value,)))
    path.write_bytes(data + b"\0" * 4)
    return path


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["f2", "f4"])
@pytest.mark.parametrize("predictor", [2, 3])
def test_differences_of_floats_are_undone(
    tmp_path: Path, predictor: int, kind: str, order: str
) -> None:
    """As programs for photographs write them."""
    stored = floats(20, 30, 3, kind=kind)
    path = by_hand(tmp_path / "a.tif", stored, predictor, order)
    assert np.array_equal(shown(path), stored.astype(np.float32))


def test_they_are_set_upright(tmp_path: Path) -> None:
    """Their size too."""
    stored = floats(20, 30, 3)
    path = by_hand(tmp_path / "a.tif", stored, 3, "<", turned=6)
    assert (probe(path).width, probe(path).height) == (20, 30)
    assert np.array_equal(shown(path), np.rot90(stored, -1))


def test_what_is_beyond_white_is_clamped_and_said(tmp_path: Path) -> None:
    """As of one channel."""
    tifffile.imwrite(tmp_path / "a.tif", floats(8, 8, 3) * 4 - 1, photometric="rgb")
    (note,) = read_picture(tmp_path / "a.tif").notes
    assert note.startswith("clamped floats of -")


@pytest.mark.parametrize("broken", ["nan", "cut", "tag"])
def test_damaged_ones_are_refused_by_name(tmp_path: Path, broken: str) -> None:
    """With a reason."""
    stored, path = floats(20, 30, 3), tmp_path / "a.tif"
    if broken == "nan":
        stored[3, 4, 1] = np.nan
    tifffile.imwrite(path, stored, photometric="rgb", compression="zlib", predictor=None)
    data = path.read_bytes()
    if broken == "cut":
        path.write_bytes(data[:-200])
    if broken == "tag":
        with tifffile.TiffFile(path, mode="r+b") as file:
            file.pages[0].tags[258].overwrite((24, 24, 24))
    with pytest.raises(InputError, match=r"a\.tif"):
        read_picture(path)
