"""A file that ends too early is noticed by its own headers."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tightfit.media.lengths import cut_off, is_cut_off

from .makers import cut, noise, write_film, write_patch_gif

FILMS = {
    "a.mp4": {"muxer": {"movflags": "+faststart"}},
    "fragments.mp4": {"muxer": {"movflags": "frag_keyframe+empty_moov"}},
    "a.mkv": {},
    "a.webm": {"codec": "libvpx-vp9", "options": {"cpu-used": "8"}},
    "a.avi": {"codec": "mpeg4"},
}


@pytest.mark.parametrize("name", FILMS)
def test_a_film_cut_anywhere_in_its_frames_is_cut_off(tmp_path: Path, name: str) -> None:
    """The whole file is whole; two thirds of it are not."""
    path = write_film(tmp_path / name, noise(8, 32, 32, 3), **FILMS[name])
    assert not is_cut_off(path)
    assert is_cut_off(cut(path, 0.66))


def test_an_animation_cut_anywhere_is_cut_off(tmp_path: Path) -> None:
    """GIF by its trailer, padded or not; WebP by its stated length."""
    gif = write_patch_gif(tmp_path / "a.gif")
    gif.write_bytes(gif.read_bytes() + b"\0" * 9)
    assert not is_cut_off(gif)
    assert is_cut_off(cut(gif, 0.7))
    webp = tmp_path / "a.webp"
    Image.fromarray(noise(8, 8, 3)).save(webp)
    assert not is_cut_off(webp)
    assert is_cut_off(cut(webp, 0.7))


def test_data_that_a_camera_appends_is_no_cut(tmp_path: Path) -> None:
    """A trailer that is no box does not count as a box of enormous length."""
    path = write_film(tmp_path / "a.mp4", noise(2, 16, 16, 3))
    path.write_bytes(path.read_bytes() + bytes(range(128, 192)))
    assert not is_cut_off(path)


def test_a_live_recording_states_no_length(tmp_path: Path) -> None:
    """A Matroska segment of unknown size is taken as whole."""
    path = write_film(tmp_path / "a.mkv", noise(4, 16, 16, 3), muxer={"live": "1"})
    assert not is_cut_off(path)
    assert not is_cut_off(cut(path, 0.9))


def test_the_error_names_the_frames_that_are_left(tmp_path: Path) -> None:
    """With none left there is nothing to advise but another copy."""
    assert "--frames 0:7" in str(cut_off(tmp_path, 7))
    assert "--frames" not in str(cut_off(tmp_path, 0))
