"""Films as PyAV gives them."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from tightfit.errors import InputError
from tightfit.media.background import WHITE, flatten
from tightfit.media.film import open_film

from .makers import cut, grey_frames, noise, patch_matrix, write_film


def test_a_source_says_what_the_header_says(tmp_path: Path) -> None:
    """Size, rate, number of frames, sound."""
    path = write_film(tmp_path / "a.mp4", grey_frames(5, 64, 32), rate=25, sound=True)
    with open_film(path) as source:
        assert (source.width, source.height, source.frames) == (64, 32, 5)
        assert source.rates == (Fraction(25),)
        assert source.has_sound
        assert not source.has_alpha
        assert source.notes == ()


@pytest.mark.parametrize(
    ("matrix", "corner"),
    [
        ((0, 1, -1, 0), (0, -1)),
        ((-1, 0, 0, -1), (-1, -1)),
        ((0, -1, 1, 0), (-1, 0)),
        ((-1, 0, 0, 1), (0, -1)),
    ],
)
def test_m12_a_turned_film_is_upright(
    tmp_path: Path, matrix: tuple[int, int, int, int], corner: tuple[int, int]
) -> None:
    """A mark stored at the top left ends where the matrix puts it: 90, 180, 270 and mirrored."""
    frames = np.zeros((2, 32, 64, 3), np.uint8)
    frames[:, :12, :12] = 250
    path = patch_matrix(write_film(tmp_path / "a.mp4", frames), *matrix)
    with open_film(path) as source:
        pixels = next(source.shots()).pixels()
        turned = matrix[0] == 0
        assert (source.width, source.height) == ((32, 64) if turned else (64, 32))
        assert pixels.shape == ((64, 32, 3) if turned else (32, 64, 3))
    corners = {(y, x): int(pixels[y, x, 0]) for y in (0, -1) for x in (0, -1)}
    assert max(corners, key=lambda place: corners[place]) == corner
    assert sorted(corners.values())[2] < 20


def test_m12_a_slanted_film_is_left_and_said(tmp_path: Path) -> None:
    """Half a quarter turn has no upright pixel grid."""
    path = patch_matrix(write_film(tmp_path / "a.mp4", grey_frames(2, 64, 32)), 1, 1, -1, 1)
    with open_film(path) as source:
        assert (source.width, source.height) == (64, 32)
        assert source.notes == ("left out a turn by -45 degrees",)


@pytest.mark.parametrize(
    ("codec", "name"), [("libvpx-vp9", "a.webm"), ("libvpx", "a.webm"), ("ffv1", "a.mkv")]
)
def test_m01_hidden_colour_in_a_transparent_film_never_shows(
    tmp_path: Path, codec: str, name: str
) -> None:
    """WebM hides its alpha from FFmpeg's own decoder; ffv1 shows it."""
    frames = np.zeros((3, 32, 32, 4), np.uint8)
    frames[..., 0] = 240
    frames[:, 8:24, 8:24, 3] = 255
    pix_fmt = "bgra" if codec == "ffv1" else "yuva420p"
    options = {"auto-alt-ref": "0"} if codec == "libvpx" else {}
    path = write_film(tmp_path / name, frames, codec=codec, pix_fmt=pix_fmt, options=options)
    with open_film(path) as source:
        assert source.has_alpha
        shots = [flatten(shot.pixels(), WHITE) for shot in source.shots()]
    assert len(shots) == 3
    assert shots[2][0, 0].tolist() == [255, 255, 255]
    assert abs(shots[2][16, 16].astype(int) - [240, 0, 0]).max() < 8


def test_ten_bits_are_read_at_sixteen(tmp_path: Path) -> None:
    """Nothing is lost, so nothing is said."""
    path = write_film(tmp_path / "a.mp4", grey_frames(2, 32, 32), pix_fmt="yuv420p10le")
    with open_film(path) as source:
        assert source.notes == ()
        assert next(source.shots()).pixels().dtype == np.uint16


@pytest.mark.parametrize("moov_first", [True, False])
def test_a_film_without_a_whole_frame_is_refused(tmp_path: Path, moov_first: bool) -> None:
    """Cut before the index, or before the first frame."""
    muxer = {"movflags": "+faststart"} if moov_first else {}
    path = write_film(tmp_path / "a.mp4", noise(6, 32, 32, 3), muxer=muxer)
    with pytest.raises(InputError, match="cut off"), open_film(cut(path, 0.2)):
        pytest.fail("it must not open")


def test_a_colon_in_the_name_is_no_protocol(tmp_path: Path) -> None:
    """FFmpeg would read `take:1.mp4` as the protocol `take`."""
    path = write_film(tmp_path / "a.mp4", grey_frames(2, 16, 16)).rename(tmp_path / "take:1.mp4")
    with open_film(path) as source:
        assert source.frames == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "hello " * 100),
        ("a.m3u8", "#EXTM3U\n#EXTINF:1,\na.mp4\n"),
        ("a.ffconcat", "ffconcat version 1.0\nfile a.mp4\n"),
    ],
)
def test_text_and_playlists_are_no_films(tmp_path: Path, name: str, text: str) -> None:
    """FFmpeg would show text as a film, and open whatever a playlist names."""
    write_film(tmp_path / "a.mp4", grey_frames(2, 16, 16))
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="neither a picture"), open_film(tmp_path / name):
        pytest.fail("it must not open")


def test_a_still_picture_of_a_film_codec_is_named(tmp_path: Path) -> None:
    """AVIF looks like a film of one frame."""
    if ".avif" not in Image.registered_extensions():
        pytest.skip("this Pillow writes no AVIF")
    Image.fromarray(noise(64, 64, 3)).save(tmp_path / "a.avif")
    with pytest.raises(InputError, match="AVIF are not read"), open_film(tmp_path / "a.avif"):
        pytest.fail("it must not open")


def test_a_title_that_is_no_text_is_no_reason_to_refuse(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 in the metadata do not matter for the picture."""
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "TITLE-TITLE"
        stream = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        for packet in (*stream.encode(frame), *stream.encode()):
            container.mux(packet)
    data = path.read_bytes()
    assert b"TITLE-TITLE" in data
    path.write_bytes(data.replace(b"TITLE-TITLE", b"TITL\xff\xfe\xffITLE"))
    with open_film(path) as source:
        assert (source.width, source.height) == (32, 32)
