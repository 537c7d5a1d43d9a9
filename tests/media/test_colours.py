"""From decoded frames to RGB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange, Colorspace

from tightfit.media.clip import read_clip
from tightfit.media.colours import Painter, matrix_of

from .makers import noise, write_film

WEIGHTS = {
    int(Colorspace.ITU601): (0.299, 0.114),
    6: (0.299, 0.114),
    int(Colorspace.ITU709): (0.2126, 0.0722),
    int(Colorspace.BT2020): (0.2627, 0.0593),
}


def flat(form: str, values: tuple[int, int, int], *, matrix: int, full: bool) -> Any:
    """A frame of one colour."""
    frame = av.VideoFrame(48, 32, form)
    wide = np.uint8 if frame.format.components[0].bits == 8 else np.uint16
    for plane, value in zip(frame.planes, values, strict=True):
        plane.update(np.full(plane.buffer_size // np.dtype(wide).itemsize, value, wide).tobytes())
    frame.colorspace = matrix
    frame.color_range = ColorRange.JPEG if full else ColorRange.MPEG
    return frame


def by_hand(
    values: tuple[int, int, int], weights: tuple[float, float], bits: int, *, full: bool
) -> np.ndarray:
    """ITU-T H.273, solved for R, G and B; in 0..1."""
    y, u, v = values
    if full:
        top = 2**bits - 1
        luma, by, ry = y / top, (u - 2 ** (bits - 1)) / top, (v - 2 ** (bits - 1)) / top
    else:
        unit = 2 ** (bits - 8)
        luma = (y / unit - 16) / 219
        by, ry = (u / unit - 128) / 224, (v / unit - 128) / 224
    kr, kb = weights
    red, blue = luma + 2 * (1 - kr) * ry, luma + 2 * (1 - kb) * by
    green = (luma - kr * red - kb * blue) / (1 - kr - kb)
    return np.clip([red, green, blue], 0, 1)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("matrix", WEIGHTS)
@pytest.mark.parametrize("form", ["yuv420p", "yuv444p", "yuv420p10le", "yuv422p12le", "p010le"])
def test_a_film_is_read_by_its_own_matrix_and_range(form: str, matrix: int, full: bool) -> None:
    """8 bits within a step of the formula, deeper ones within two steps of 16 bits."""
    bits = {"yuv420p10le": 10, "yuv422p12le": 12, "p010le": 10}.get(form, 8)
    values = tuple(value * 2 ** (bits - 8) + bits - 8 for value in (120, 90, 180))
    expected = by_hand(values, WEIGHTS[matrix], bits, full=full)
    if form == "p010le":
        frame = flat("yuv420p10le", values, matrix=matrix, full=full).reformat(format="p010le")
    else:
        frame = flat(form, values, matrix=matrix, full=full)
    pixels = Painter().paint(frame)
    assert pixels.dtype == (np.uint8 if bits == 8 else np.uint16)
    top, step = (255, 1.0) if bits == 8 else (65535, 2.0)
    assert np.abs(pixels[8, 8].astype(float) - expected * top).max() <= step


@pytest.mark.parametrize("bits", [8, 10])
def test_white_is_white_and_black_is_black(bits: int) -> None:
    """In limited range nothing is left of 16 and 235."""
    form = "yuv444p" if bits == 8 else "yuv444p10le"
    grey = 2 ** (bits - 1)
    for luma, shade in ((16, 0), (235, 255 if bits == 8 else 65535)):
        frame = flat(form, (luma * 2 ** (bits - 8), grey, grey), matrix=1, full=False)
        assert np.unique(Painter().paint(frame)).tolist() == [shade]


@pytest.mark.parametrize(
    ("width", "height", "matrix"), [(1280, 720, 1), (720, 576, 5), (640, 480, 5), (608, 1080, 1)]
)
def test_a_film_that_says_nothing_is_taken_by_its_size(
    width: int, height: int, matrix: int
) -> None:
    """As players do: BT.709 for the large, BT.601 for the small."""
    assert matrix_of(av.VideoFrame(width, height, "yuv420p")) == matrix


@pytest.mark.parametrize("form", ["gbrp", "gbrp10le", "gbrp16le", "rgb48le", "gbrap16le"])
def test_rgb_is_taken_as_it_is(form: str) -> None:
    """Each sample, scaled to 8 or 16 bits."""
    frame = av.VideoFrame(33, 17, form)
    bits = int(frame.format.components[0].bits)
    random = np.random.default_rng(0)
    wide = np.uint8 if bits == 8 else np.uint16
    for plane in frame.planes:
        count = plane.buffer_size // np.dtype(wide).itemsize
        plane.update(random.integers(0, 2**bits, count).astype(wide).tobytes())
    pixels = Painter().paint(frame)
    assert pixels.shape == (17, 33, 4 if form == "gbrap16le" else 3)
    first = np.frombuffer(frame.planes[0], wide)
    stored = float(first[1] if form == "rgb48le" else first[0])  # green
    assert pixels[0, 0, 1] == np.rint(stored * (255 if bits == 8 else 65535) / (2**bits - 1))


@pytest.mark.parametrize("form", ["gray", "gray10le", "gray16le"])
def test_grey_has_the_full_range(form: str) -> None:
    """Its top is white, on three channels."""
    frame = av.VideoFrame(16, 16, form)
    bits = int(frame.format.components[0].bits)
    wide = np.uint8 if bits == 8 else np.uint16
    count = frame.planes[0].buffer_size // np.dtype(wide).itemsize
    frame.planes[0].update(np.full(count, 2**bits - 1, wide).tobytes())
    assert np.unique(Painter().paint(frame)).tolist() == [255 if bits == 8 else 65535]


@pytest.mark.parametrize("size", [(33, 17), (65, 48), (1, 1)])
def test_odd_sizes_are_read(tmp_path: Path, size: tuple[int, int]) -> None:
    """In 4:2:0, whose colours have half a column more than the picture."""
    width, height = size
    pixels = np.broadcast_to(np.uint8([200, 40, 90]), (2, height, width, 3)).copy()
    path = write_film(tmp_path / "a.webm", pixels, codec="libvpx-vp9", options={"lossless": "1"})
    clip = read_clip(path)
    assert clip.pixels.shape == (2, 3, height, width)
    colours = clip.pixels.float().mean((0, 2, 3))
    assert np.abs(colours.numpy() - [200, 40, 90]).max() <= 3


def test_a_matrix_that_nobody_knows_is_refused() -> None:
    """ICtCp is no matter of three weights."""
    frame = flat("yuv420p", (120, 90, 180), matrix=14, full=False)
    with pytest.raises(av.error.FFmpegError):
        Painter().paint(frame)


def test_ten_bits_keep_more_than_eight(tmp_path: Path) -> None:
    """A ramp finer than 8 bits has more than 256 values."""
    ramp = np.broadcast_to(np.arange(512, dtype=np.uint16) * 128, (16, 512))
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(np.dstack([ramp] * 3)), "rgb48le")
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=24)
        stream.width, stream.height, stream.pix_fmt = 512, 16, "yuv444p10le"
        made = frame.reformat(format="yuv444p10le")
        container.mux(stream.encode(made))
        container.mux(stream.encode())
    clip = read_clip(path)
    assert len(np.unique(clip.pixels.numpy()[0, 1, 8])) > 400
    assert clip.notes == ()


def test_noise_is_as_it_was_before_planes(tmp_path: Path) -> None:
    """What the planes hold is what FFmpeg packs."""
    path = write_film(tmp_path / "a.mp4", noise(1, 32, 48, 3))
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
        from tightfit.media.colours import EXACT

        packed = frame.to_ndarray(format="rgb24", interpolation=EXACT)
        assert np.array_equal(Painter().paint(frame), packed)
