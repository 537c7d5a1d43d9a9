"""What a file is, without reading it all."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tightfit.errors import InputError
from tightfit.media.clip import read_clip
from tightfit.media.info import MediaInfo, probe

from .makers import cut, grey_frames, noise, patch_matrix, write_film, write_patch_gif


def test_a_picture_is_known_by_its_content(tmp_path: Path) -> None:
    """The name may lie."""
    Image.fromarray(noise(5, 7, 4)).save(tmp_path / "a.mp4", "PNG")
    assert probe(tmp_path / "a.mp4") == MediaInfo("picture", 7, 5, 1, None, True, False)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_m07_the_reported_size_is_upright(tmp_path: Path, orientation: int) -> None:
    """It equals the size of the pixels that are read."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(noise(20, 40, 3)).save(tmp_path / "a.jpg", exif=exif)
    info = probe(tmp_path / "a.jpg")
    assert (info.width, info.height) == ((40, 20) if orientation < 5 else (20, 40))


def test_a_film_says_its_size_rate_length_and_sound(tmp_path: Path) -> None:
    """As the header has them."""
    path = write_film(tmp_path / "a.png.mp4", grey_frames(6, 64, 32), rate=24, sound=True)
    assert probe(path) == MediaInfo("clip", 64, 32, 6, Fraction(24), False, True)


def test_m11_a_header_without_a_frame_count_gives_none(tmp_path: Path) -> None:
    """Unknown is None, neither 0 nor duration times rate."""
    path = write_film(
        tmp_path / "a.mkv", grey_frames(6, 16, 16), times_ms=[0, 33, 66, 400, 433, 900]
    )
    assert probe(path).frames is None


def test_m12_a_turned_film_has_its_upright_size(tmp_path: Path) -> None:
    """A portrait film reports a portrait."""
    path = patch_matrix(write_film(tmp_path / "a.mp4", grey_frames(2, 64, 32)), 0, 1, -1, 0)
    info = probe(path)
    assert (info.width, info.height) == (32, 64)


def test_m09_an_animation_is_a_clip(tmp_path: Path) -> None:
    """With a known number of frames."""
    info = probe(write_patch_gif(tmp_path / "a.gif"))
    assert info == MediaInfo("clip", 32, 24, 5, Fraction(25, 2), False, False)


def test_a_folder_of_frames_is_a_clip(tmp_path: Path) -> None:
    """Without a rate of its own."""
    for number in (1, 2):
        Image.fromarray(noise(4, 6, 3)).save(tmp_path / f"frame_{number}.png")
    assert probe(tmp_path) == MediaInfo("clip", 6, 4, 2, None, False, False)


def test_a_picture_is_not_decoded(tmp_path: Path) -> None:
    """One that is cut off behind its header still has a size."""
    Image.fromarray(noise(40, 60, 3)).save(tmp_path / "a.png")
    info = probe(cut(tmp_path / "a.png", 0.5))
    assert (info.width, info.height) == (60, 40)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty.png", b""),
        ("short.png", b"\x89PNG\r\n\x1a\n\0\0"),
        ("short.jpg", b"\xff\xd8\xff\xe0\0\x10JF"),
        ("short.mp4", b"\0\0\0\x20ftypisom"),
        ("text.png", b"hello, this is no picture"),
        ("numbers.mp4", bytes(range(256)) * 8),
    ],
)
def test_what_is_neither_picture_nor_film_is_refused(
    tmp_path: Path, name: str, data: bytes
) -> None:
    """The message names the file."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=name):
        probe(tmp_path / name)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The message says that it is missing."""
    with pytest.raises(InputError, match=r"a\.png: No such file"):
        probe(tmp_path / "a.png")


def test_a_song_is_sound_and_no_film(tmp_path: Path) -> None:
    """A picture that is no film in it changes nothing."""
    import av

    path = tmp_path / "song.mp4"
    with av.open(str(path), "w") as container:
        audio = container.add_stream("aac", rate=48000)
        block = av.AudioFrame.from_ndarray(
            np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
        )
        block.sample_rate = 48000
        container.mux(audio.encode(block))
        container.mux(audio.encode())
    info = probe(path)
    assert (info.kind, info.width, info.frames, info.has_sound) == ("sound", 0, None, True)
    with pytest.raises(InputError, match="no moving picture"):
        read_clip(path)
