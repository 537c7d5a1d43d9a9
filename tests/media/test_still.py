"""Pictures as Pillow stores them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from tightfit.errors import InputError
from tightfit.media import still
from tightfit.media.turn import UPRIGHT, from_exif

from .makers import chunk, noise, write_deep_png, write_patch_gif


def test_a_picture_of_another_kind_is_not_ours_to_judge(tmp_path: Path) -> None:
    """A BMP passes through as unidentified, so that a film can be tried."""
    path = tmp_path / "a.png"
    Image.fromarray(noise(4, 4, 3)).save(path, "BMP")
    with pytest.raises(UnidentifiedImageError), still.open_still(path):
        pytest.fail("it must not open")


def test_an_enormous_picture_is_refused_and_a_large_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow's own warning at half its limit does not reach the user."""
    path = tmp_path / "a.png"
    Image.fromarray(noise(10, 15, 3)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with still.open_still(path) as image:
        assert image.size == (15, 10)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(InputError, match="more than 100 pixels"), still.open_still(path):
        pytest.fail("it must not open")


def test_an_animation_moves_and_a_single_gif_does_not(tmp_path: Path) -> None:
    """What counts is how many frames there are."""
    with still.open_still(write_patch_gif(tmp_path / "a.gif")) as image:
        assert still.is_moving(image)
        assert still.frame_count(image) == 5
    with still.open_still(write_patch_gif(tmp_path / "b.gif", frames=1)) as image:
        assert not still.is_moving(image)


def test_orientation_behind_the_pixels_is_found_without_decoding(tmp_path: Path) -> None:
    """Some tools append the EXIF chunk of a PNG at the end."""
    path = tmp_path / "a.png"
    Image.fromarray(noise(4, 6, 3)).save(path)
    exif = Image.Exif()
    exif[0x0112] = 6
    data = path.read_bytes()
    late = chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0"))
    path.write_bytes(data[:-12] + late + data[-12:])
    with still.open_still(path) as image:
        assert still.turn_of(image, path) == from_exif(6)


def test_damaged_orientation_counts_as_none(tmp_path: Path) -> None:
    """And Pillow's warning about it reaches nobody."""
    path = tmp_path / "a.jpg"
    Image.fromarray(noise(4, 6, 3)).save(path, exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01")
    with still.open_still(path) as image:
        assert still.turn_of(image, path) == UPRIGHT


def test_a_picture_without_orientation_is_upright(tmp_path: Path) -> None:
    """No tag, no turn."""
    path = tmp_path / "a.png"
    Image.fromarray(noise(4, 6, 3)).save(path)
    with still.open_still(path) as image:
        assert still.turn_of(image, path) == UPRIGHT


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_m04_sixteen_bits_are_read_in_full_for_every_kind(tmp_path: Path, channels: int) -> None:
    """25828 is 25828/65535 in grey, grey with alpha, RGB and RGBA alike; low bytes count."""
    samples = np.full((2, 3, channels), 25828)
    path = write_deep_png(tmp_path / "a.png", samples)
    with still.open_still(path) as image:
        planes = still.read_planes(image, path)
    assert planes.rgb.shape == (2, 3, 3)
    assert planes.rgb == pytest.approx(np.full((2, 3, 3), 25828 / 65535), abs=1e-7)
    assert (planes.alpha is not None) == (channels in {2, 4})


def test_a_transparent_shade_among_sixteen_bits_is_transparent(tmp_path: Path) -> None:
    """The tRNS chunk of a grey or an RGB file names one value that does not show."""
    samples = np.array([[[5], [6]]])
    path = write_deep_png(tmp_path / "a.png", samples, extra=chunk(b"tRNS", b"\0\6"))
    with still.open_still(path) as image:
        assert still.has_alpha(image)
        planes = still.read_planes(image, path)
    assert planes.alpha is not None
    assert planes.alpha[0, :, 0].tolist() == [1, 0]
