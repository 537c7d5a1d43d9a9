"""Reading and writing single pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, features

from tightfit.errors import InputError, JobFailed
from tightfit.media.clip import read_clip
from tightfit.media.picture import read_picture
from tightfit.media.picture_writer import write_picture

from .makers import cut, noise, write_deep_png, write_film, write_patch_gif

FORMATS = {
    "a.png": {},
    "a.jpg": {},
    "progressive.jpg": {"progressive": True},
    "a.webp": {},
    "lossless.webp": {"lossless": True},
    "a.gif": {},
}


def cut_out(path: Path, hidden: tuple[int, int, int]) -> Path:
    """An RGBA PNG 8x8 with one visible pixel and `hidden` colour under the rest."""
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:, :, :3] = hidden
    pixels[3, 4] = (10, 200, 30, 255)
    Image.fromarray(pixels).save(path)
    return path


def test_m01_hidden_colour_under_alpha_never_shows(tmp_path: Path) -> None:
    """Two files that look alike load alike, over white unless another colour is asked for."""
    black = read_picture(cut_out(tmp_path / "black.png", (0, 0, 0)), keep_alpha=True)
    red = read_picture(cut_out(tmp_path / "red.png", (240, 30, 10)), keep_alpha=True)
    assert torch.equal(black.pixels, red.pixels)
    assert black.pixels[:, 0, 0].tolist() == [1, 1, 1]
    assert black.pixels[:, 3, 4] * 255 == pytest.approx([10, 200, 30])
    assert black.alpha is not None
    assert red.alpha is not None
    assert torch.equal(black.alpha, red.alpha)
    assert black.alpha.shape == (1, 8, 8)
    assert black.alpha.sum() == 1
    assert black.notes == ("composited alpha over white",)


def test_m01_the_background_can_be_chosen(tmp_path: Path) -> None:
    """The note names it."""
    path = cut_out(tmp_path / "a.png", (240, 30, 10))
    picture = read_picture(path, background=(0.0, 0.0, 1.0))
    assert picture.pixels[:, 0, 0].tolist() == [0, 0, 1]
    assert picture.alpha is None
    assert picture.notes == ("composited alpha over #0000ff",)


def test_m01_an_opaque_rgba_equals_the_rgb_file(tmp_path: Path) -> None:
    """Alpha that hides nothing changes no bit and is not worth a note."""
    pixels = noise(9, 7, 3)
    Image.fromarray(pixels).save(tmp_path / "rgb.png")
    Image.fromarray(np.dstack([pixels, np.full((9, 7), 255, np.uint8)])).save(tmp_path / "rgba.png")
    plain = read_picture(tmp_path / "rgb.png", keep_alpha=True)
    opaque = read_picture(tmp_path / "rgba.png", keep_alpha=True)
    assert torch.equal(plain.pixels, opaque.pixels)
    assert plain.alpha is None
    assert opaque.alpha is not None
    assert opaque.alpha.min() == 1
    assert opaque.notes == ()


def test_m03_sixteen_bit_grey_is_scaled_not_clamped(tmp_path: Path) -> None:
    """Depth maps use the whole range."""
    values = np.array([0, 128, 256, 32768, 65535])
    picture = read_picture(write_deep_png(tmp_path / "a.png", values.reshape(1, 5, 1)))
    assert picture.pixels.shape == (3, 1, 5)
    for channel in picture.pixels:
        assert channel[0].numpy() == pytest.approx(values / 65535, abs=1e-7)


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("LA", "a.png"),
        ("L", "a.jpg"),
        ("1", "a.png"),
        ("L", "a.png"),
        ("P", "a.png"),
        ("P", "a.gif"),
    ],
)
def test_m05_every_kind_of_picture_gives_three_channels(
    tmp_path: Path, mode: str, name: str
) -> None:
    """Grey, grey with alpha, 1-bit and palette are RGB floats in 0..1."""
    source = Image.fromarray(noise(17, 33, 3)).convert(mode)
    source.save(tmp_path / name)
    picture = read_picture(tmp_path / name, keep_alpha=True)
    assert picture.pixels.dtype == torch.float32
    assert picture.pixels.shape == (3, 17, 33)
    assert 0 <= picture.pixels.min() < picture.pixels.max() <= 1
    assert (picture.alpha is not None) == (mode == "LA")
    if name == "a.png":
        expected = np.asarray(source.convert("RGB"), np.float32).transpose(2, 0, 1) / 255
        assert np.array_equal(picture.pixels.numpy(), expected)


@pytest.mark.parametrize("name", ["a.png", "a.gif"])
def test_m05_a_transparent_palette_entry_is_transparent(tmp_path: Path, name: str) -> None:
    """Its stored colour does not show."""
    image = Image.new("P", (4, 2))
    image.putpalette([250, 0, 0, 0, 250, 0])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / name, transparency=0)
    picture = read_picture(tmp_path / name, keep_alpha=True)
    assert picture.alpha is not None
    assert picture.alpha.sum() == 1
    assert picture.pixels[:, 1, 0].tolist() == [1, 1, 1]
    assert picture.pixels[:, 0, 1] * 255 == pytest.approx([0, 250, 0])


def test_m05_print_colours_become_rgb(tmp_path: Path) -> None:
    """A CMYK JPEG has four channels, none of which is alpha."""
    Image.fromarray(noise(17, 33, 3)).convert("CMYK").save(tmp_path / "a.jpg")
    picture = read_picture(tmp_path / "a.jpg", keep_alpha=True)
    assert picture.pixels.shape == (3, 17, 33)
    assert picture.alpha is None


@pytest.mark.parametrize("orientation", range(1, 9))
def test_m07_a_phone_photo_is_upright(tmp_path: Path, orientation: int) -> None:
    """The red quadrant is at the top left for all eight orientations, and the size fits."""
    upright = np.zeros((40, 20, 3), np.uint8)
    upright[:20, :10, 0] = 240
    stored = Image.fromarray(upright)
    undo = {
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_270],
    }
    for step in undo.get(orientation, []):
        stored = stored.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.jpg", exif=exif, quality=95)
    picture = read_picture(tmp_path / "a.jpg")
    assert picture.pixels.shape == (3, 40, 20)
    assert picture.pixels[0, :20, :10].mean() > 0.85
    assert picture.pixels[0, 20:].mean() < 0.1
    assert picture.pixels[0, :, 10:].mean() < 0.1


def test_m07_a_written_picture_carries_no_stale_tag(tmp_path: Path) -> None:
    """What was set upright is not turned again by the next program."""
    write_picture(tmp_path / "a.png", torch.zeros(3, 4, 6))
    with Image.open(tmp_path / "a.png") as image:
        assert dict(image.getexif()) == {}
        assert image.info == {}


def test_m09_an_animation_read_as_a_picture_gives_its_first_frame(tmp_path: Path) -> None:
    """The note says how many were left out."""
    picture = read_picture(write_patch_gif(tmp_path / "a.gif"))
    assert picture.pixels.shape == (3, 24, 32)
    assert picture.pixels[0, 8:16, :8].min() * 255 == pytest.approx(250)
    assert picture.pixels[0, :, 8:].max() == 0
    assert picture.notes == ("left out 4 further frames",)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("share", [0.005, 0.1, 0.5, 0.95])
def test_a_picture_that_is_cut_off_is_refused(tmp_path: Path, name: str, share: float) -> None:
    """Never half a picture with a grey rest."""
    Image.fromarray(noise(40, 60, 3)).save(tmp_path / name, **FORMATS[name])
    with pytest.raises(InputError, match=name):
        read_picture(cut(tmp_path / name, share))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_deep_picture_that_is_cut_off_is_refused(tmp_path: Path, channels: int) -> None:
    """The decoder for 16 bits would accept it."""
    samples = noise(40, 60, channels).astype(int) * 257 - noise(40, 60, channels, seed=1)
    path = write_deep_png(tmp_path / "a.png", np.abs(samples))
    with pytest.raises(InputError, match="cut off or damaged"):
        read_picture(cut(path, 0.6))


def test_a_damaged_picture_is_refused(tmp_path: Path) -> None:
    """A check sum that does not fit is damage."""
    Image.fromarray(noise(40, 60, 3)).save(tmp_path / "a.png")
    data = bytearray((tmp_path / "a.png").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(InputError, match="cut off or damaged"):
        read_picture(tmp_path / "a.png")


def test_a_film_is_no_picture(tmp_path: Path) -> None:
    """Whatever its name says."""
    path = write_film(tmp_path / "a.mp4", noise(2, 16, 16, 3)).rename(tmp_path / "a.png")
    with pytest.raises(InputError, match="as a picture"):
        read_picture(path)


@pytest.mark.parametrize("channels", [3, 4])
def test_a_written_picture_reads_back_bit_for_bit(tmp_path: Path, channels: int) -> None:
    """All 256 steps survive the way through floats."""
    pixels = torch.from_numpy(noise(channels, 20, 30))
    write_picture(tmp_path / "a.png", pixels.float() / 255)
    back = np.asarray(Image.open(tmp_path / "a.png"))
    assert np.array_equal(back.transpose(2, 0, 1), pixels.numpy())


def test_c01_a_picture_that_is_no_picture_is_not_written(tmp_path: Path) -> None:
    """NaN is refused by number, and what was there stays."""
    (tmp_path / "a.png").write_bytes(b"old")
    pixels = torch.full((3, 4, 4), float("nan"))
    with pytest.raises(JobFailed, match="48 of 48 values"):
        write_picture(tmp_path / "a.png", pixels)
    assert (tmp_path / "a.png").read_bytes() == b"old"


def test_a_picture_of_no_known_kind_is_not_written(tmp_path: Path) -> None:
    """The legal suffixes are named."""
    with pytest.raises(InputError, match=r"must end in \.png, \.webp"):
        write_picture(tmp_path / "a.txt", torch.zeros(3, 4, 4))


def test_a_jpeg_of_several_pictures_gives_its_first(tmp_path: Path) -> None:
    """As phones and stereo cameras write them; the others are said."""
    pictures = [Image.fromarray(noise(16, 16, 3, seed=at)) for at in range(3)]
    pictures[0].save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=pictures[1:])
    pictures[0].save(tmp_path / "b.jpg", "JPEG")
    picture = read_picture(tmp_path / "a.jpg")
    assert picture.notes == ("left out 2 further pictures",)
    assert torch.equal(picture.pixels, read_picture(tmp_path / "b.jpg").pixels)


def test_print_colours_are_read_as_they_look(tmp_path: Path) -> None:
    """No ink is white; as Adobe stores them, the other way round, they come out the same."""
    inks = np.zeros((16, 16, 4), np.uint8)
    inks[:, 8:, 3] = 255  # black
    Image.fromarray(inks, "CMYK").save(tmp_path / "a.jpg", quality=100)
    picture = read_picture(tmp_path / "a.jpg")
    assert picture.pixels[:, :, 0].min() > 0.98
    assert picture.pixels[:, :, -1].max() < 0.02
    assert picture.notes == ("read print colours (CMYK) without a profile",)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow reads no AVIF")
def test_avif_is_read_upright_and_as_a_clip(tmp_path: Path) -> None:
    """Where Pillow was built with it."""
    upright = np.zeros((40, 20, 3), np.uint8)
    upright[:20, :10] = 240
    stored = Image.fromarray(upright).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    stored.save(tmp_path / "a.avif", exif=exif, quality=100)
    picture = read_picture(tmp_path / "a.avif")
    assert picture.pixels.shape == (3, 40, 20)
    assert picture.pixels[0, 2:18, 2:8].min() > 0.85
    frames = [Image.new("RGB", (32, 24), (value, 0, 0)) for value in (40, 120, 200)]
    frames[0].save(tmp_path / "b.avif", save_all=True, append_images=frames[1:], duration=100)
    clip = read_clip(tmp_path / "b.avif")
    assert clip.fps == 10
    assert (clip.pixels[:, 0, 0, 0].int() - torch.tensor([40, 120, 200])).abs().max() <= 4
    assert read_picture(tmp_path / "b.avif").notes == ("left out 2 further frames",)


def test_transparency_of_one_colour_is_transparency(tmp_path: Path) -> None:
    """Of grey and of colour, as old PNG files have it."""
    grey = np.array([[0, 7, 200]], np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png", transparency=7)
    colour = np.array([[[1, 2, 3], [9, 9, 9]]], np.uint8)
    Image.fromarray(colour).save(tmp_path / "rgb.png", transparency=(1, 2, 3))
    for name, alpha in (("grey.png", [1, 0, 1]), ("rgb.png", [0, 1])):
        picture = read_picture(tmp_path / name, keep_alpha=True)
        assert picture.alpha is not None
        assert picture.alpha[0, 0].tolist() == alpha
