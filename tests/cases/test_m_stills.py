"""Group M, pictures: transparency, depth, channels, orientation, animations as pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tightfit
from tests.media.makers import noise, write_deep_png, write_patch_gif
from tightfit.media.info import probe
from tightfit.media.picture import read_picture
from tightfit.media.picture_writer import write_picture
from tightfit.testing import toy_vae

CARD = "virtual:1GiB"
STEP = 1 / 65535


def cut_out(path: Path, hidden: tuple[int, int, int]) -> Path:
    """RGBA 8x8 with one visible pixel, and `hidden` colour under the others."""
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:, :, :3] = hidden
    pixels[3, 4] = (10, 200, 30, 255)
    Image.fromarray(pixels).save(path)
    return path


def test_m01_a_cut_out_is_the_same_whatever_hides_under_it(tmp_path: Path) -> None:
    """The stated background shows; alpha comes as a channel of its own, in and out again."""
    vae = toy_vae("V2", width=8)
    made = []
    for hidden in ((0, 0, 0), (240, 30, 10)):
        path = cut_out(tmp_path / f"{hidden[0]}.png", hidden)
        done = tightfit.encode(path, vae=vae, card=CARD, keep_alpha=True)
        assert "composited alpha over white" in done.report.adjusted
        made.append(done.value)
    black, red = made
    assert torch.equal(black.latent, red.latent)
    assert black.alpha is not None
    assert black.alpha.sum() == 1
    back = tightfit.decode(black, vae=vae, card=CARD).value.pixels
    assert back.shape == (1, 4, 8, 8)
    assert torch.equal(back[:, 3:], black.alpha)
    pixels = read_picture(tmp_path / "0.png").pixels
    assert pixels[:, 0, 0].tolist() == [1, 1, 1]
    assert pixels[:, 3, 4] * 255 == pytest.approx([10, 200, 30])


def test_m01_an_opaque_rgba_is_its_rgb(tmp_path: Path) -> None:
    """Bit for bit, with nothing to say."""
    rgb = noise(9, 7, 3)
    Image.fromarray(rgb).save(tmp_path / "rgb.png")
    Image.fromarray(np.dstack([rgb, np.full((9, 7), 255, np.uint8)])).save(tmp_path / "rgba.png")
    opaque = read_picture(tmp_path / "rgba.png")
    assert torch.equal(opaque.pixels, read_picture(tmp_path / "rgb.png").pixels)
    assert opaque.notes == ()


def test_m03_a_depth_map_is_scaled_not_clamped(tmp_path: Path) -> None:
    """16-bit grey: each value divided by 65535, on three channels."""
    values = np.array([0, 128, 256, 32768, 65535], np.uint16)
    path = write_deep_png(tmp_path / "a.png", values.reshape(1, 5, 1))
    pixels = read_picture(path).pixels
    assert pixels.shape == (3, 1, 5)
    for channel in pixels:
        assert channel[0].tolist() == pytest.approx((values / 65535).tolist(), abs=STEP)


def test_m04_colour_and_grey_of_16_bits_agree(tmp_path: Path) -> None:
    """25828 keeps its low byte in both, and in what `decode` writes at 16 bits."""
    colour = np.array([[[25828, 0, 65535], [1, 2, 3], [257, 256, 255]]], np.uint16)
    read = read_picture(write_deep_png(tmp_path / "rgb.png", colour))
    grey = read_picture(write_deep_png(tmp_path / "grey.png", colour[:, :1, :1])).pixels
    assert read.bits == 16
    assert read.pixels[0, 0, 0] == grey[0, 0, 0] == pytest.approx(25828 / 65535, abs=STEP)
    expected = torch.from_numpy(colour.astype(np.float32).transpose(2, 0, 1)) / 65535
    assert (read.pixels - expected).abs().max() <= STEP
    write_picture(tmp_path / "out.png", read.pixels, bits=16)
    assert torch.equal(read_picture(tmp_path / "out.png").pixels, read.pixels)


@pytest.mark.parametrize(("mode", "name"), [("LA", "a.png"), ("L", "a.jpg"), ("1", "a.png")])
def test_m05_pictures_of_few_channels_are_encoded(tmp_path: Path, mode: str, name: str) -> None:
    """Three channels in 0..1, alpha apart, and the VAE takes it."""
    Image.fromarray(noise(17, 33)).convert("L").convert(mode).save(tmp_path / name)
    picture = read_picture(tmp_path / name, keep_alpha=True)
    assert picture.pixels.shape == (3, 17, 33)
    assert picture.pixels.dtype == torch.float32
    assert 0 <= picture.pixels.min() <= picture.pixels.max() <= 1
    assert (picture.alpha is not None) == (mode == "LA")
    latent = tightfit.encode(tmp_path / name, vae=toy_vae("V2", width=8), card=CARD).value
    assert (latent.width, latent.height) == (33, 17)


UNDO = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_m07_a_phone_photo_and_its_mask_lie_alike(tmp_path: Path, orientation: int) -> None:
    """Upright pixels, the size of them, and no tag in what is written."""
    upright = np.zeros((40, 20, 3), np.uint8)
    upright[:20, :10] = 240
    Image.fromarray(upright[:, :, 0]).save(tmp_path / "mask.png")
    stored = Image.fromarray(upright)
    if orientation in UNDO:
        stored = stored.transpose(UNDO[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.jpg", exif=exif, quality=95)
    picture, mask = (read_picture(tmp_path / name) for name in ("a.jpg", "mask.png"))
    info = probe(tmp_path / "a.jpg")
    assert (info.height, info.width) == picture.pixels.shape[1:] == mask.pixels.shape[1:]
    assert (picture.pixels - mask.pixels).abs().mean() < 0.02
    for name in ("out.png", "out.webp", "out.jpg"):
        write_picture(tmp_path / name, picture.pixels)
        with Image.open(tmp_path / name) as image:
            assert 0x0112 not in image.getexif()
            assert image.size == (20, 40)


def test_m09_an_animation_as_a_picture_is_its_first_frame(tmp_path: Path) -> None:
    """And what is left out is said."""
    path = write_patch_gif(tmp_path / "a.gif")
    picture = read_picture(path)
    assert picture.pixels.shape == (3, 24, 32)
    assert picture.pixels[0, 12, :8].min() > 0.9
    assert picture.pixels[0, 12, 8:].max() < 0.1
    assert picture.notes == ("left out 4 further frames",)
