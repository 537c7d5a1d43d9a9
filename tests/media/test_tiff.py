"""TIFF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tightfit.errors import InputError
from tightfit.media.info import probe
from tightfit.media.picture import read_picture

from .makers import noise


def deep(*shape: int) -> np.ndarray:
    """Random uint16 values."""
    return np.random.default_rng(0).integers(0, 65536, shape).astype(np.uint16)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("channels", "terms"),
    [
        (1, {}),
        (1, {"compression": "zlib"}),
        (3, {"photometric": "rgb"}),
        (3, {"photometric": "rgb", "compression": "zlib"}),
        (4, {"photometric": "rgb", "extrasamples": ["unassalpha"]}),
    ],
)
def test_sixteen_bits_are_read_in_full(
    tmp_path: Path, channels: int, terms: dict[str, Any], order: str
) -> None:
    """Grey, colour and alpha, in either byte order."""
    samples = deep(20, 30, channels)
    stored = samples[:, :, 0] if channels == 1 else samples
    tifffile.imwrite(tmp_path / "a.tif", stored, byteorder=order, **terms)
    picture = read_picture(tmp_path / "a.tif", keep_alpha=True, background=(0.0, 0.0, 0.0))
    assert picture.bits == 16
    values = samples.astype(np.float32) / np.float32(65535)
    if channels == 4:
        assert picture.alpha is not None
        assert np.array_equal(picture.alpha.numpy()[0], values[:, :, 3])
        values = values[:, :, :3] * values[:, :, 3:]
    expected = np.broadcast_to(values, (20, 30, 3)).transpose(2, 0, 1)
    assert np.abs(picture.pixels.numpy() - expected).max() < 1e-6


def test_differences_of_rows_are_undone(tmp_path: Path) -> None:
    """As LZW files mostly are."""
    grey = deep(20, 30)
    Image.fromarray(grey).save(tmp_path / "a.tif", compression="tiff_lzw", tiffinfo={317: 2})
    pixels = read_picture(tmp_path / "a.tif").pixels[0].numpy()
    assert np.array_equal(pixels, grey.astype(np.float32) / np.float32(65535))


def test_tiles_of_sixteen_bits_are_in_full_or_said(tmp_path: Path) -> None:
    """Grey in full; of colour the upper 8 bits, which the note says."""
    grey, colour = deep(64, 64), deep(64, 64, 3)
    tifffile.imwrite(tmp_path / "grey.tif", grey, tile=(32, 32))
    tifffile.imwrite(tmp_path / "rgb.tif", colour, tile=(32, 32), photometric="rgb")
    pixels = read_picture(tmp_path / "grey.tif").pixels[0].numpy()
    assert np.array_equal(pixels, grey.astype(np.float32) / np.float32(65535))
    read = read_picture(tmp_path / "rgb.tif")
    assert read.notes == ("read 16 bits a sample as 8",)
    assert np.abs(read.pixels.numpy().transpose(1, 2, 0) - colour / 65535).max() < 1 / 250


def test_floats_are_clamped_and_said(tmp_path: Path) -> None:
    """0..1 stays as it is, to the last bit."""
    floats = np.linspace(-0.5, 2, 60, dtype=np.float32).reshape(6, 10)
    tifffile.imwrite(tmp_path / "a.tif", floats)
    picture = read_picture(tmp_path / "a.tif")
    assert picture.bits == 32
    assert np.array_equal(picture.pixels[0].numpy(), floats.clip(0, 1))
    assert picture.notes == ("clamped floats of -0.5 to 2 to 0..1",)
    tifffile.imwrite(tmp_path / "b.tif", floats.clip(0, 1))
    assert read_picture(tmp_path / "b.tif").notes == ()


def test_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    """A picture has none of them."""
    tifffile.imwrite(tmp_path / "a.tif", np.full((4, 4), np.nan, np.float32))
    with pytest.raises(InputError, match="NaN"):
        read_picture(tmp_path / "a.tif")


@pytest.mark.parametrize("kind", [np.uint32, np.int32, np.int16])
def test_integers_without_a_white_are_refused(tmp_path: Path, kind: type) -> None:
    """Nothing says what their top means."""
    tifffile.imwrite(tmp_path / "a.tif", np.arange(16, dtype=kind).reshape(4, 4))
    with pytest.raises(InputError, match=r"values is white; convert it to 16 bits"):
        read_picture(tmp_path / "a.tif")


def test_further_pages_are_said(tmp_path: Path) -> None:
    """The first is read."""
    pages = [Image.fromarray(noise(8, 9, 3, seed=at)) for at in range(3)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    picture = read_picture(tmp_path / "a.tif")
    assert picture.notes == ("left out 2 further pages",)
    assert np.array_equal(picture.pixels.numpy() * 255, np.asarray(pages[0]).transpose(2, 0, 1))


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_m07_a_turned_page_is_upright(tmp_path: Path, orientation: int, depth: int) -> None:
    """At both depths, and so is the size that is known before."""
    upright = np.zeros((20, 10), np.uint16)
    upright[:10, :5] = 65535
    turns = {1: 0, 3: 2, 6: 1, 8: 3}
    stored = np.rot90(upright, turns[orientation])
    values = stored if depth == 16 else (stored >> 8).astype(np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", values, extratags=[(274, "H", 1, orientation, True)])
    picture, info = read_picture(tmp_path / "a.tif"), probe(tmp_path / "a.tif")
    assert (info.height, info.width) == tuple(picture.pixels.shape[1:]) == (20, 10)
    assert np.array_equal(picture.pixels[0].numpy(), (upright > 0).astype(np.float32))


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
@pytest.mark.parametrize("depth", [8, 16])
def test_a_page_that_is_cut_off_is_refused(tmp_path: Path, share: float, depth: int) -> None:
    """Never half a picture."""
    values = deep(40, 40, 3) if depth == 16 else noise(40, 40, 3)
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="rgb", compression="zlib")
    data = (tmp_path / "a.tif").read_bytes()
    (tmp_path / "a.tif").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError):
        read_picture(tmp_path / "a.tif")
