"""Group M, clips: animations, folders, uneven times, rotation, long films, odd sizes."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tightfit
from tests.media.makers import grey_frames, patch_matrix, write_film, write_patch_gif
from tightfit.cli import run
from tightfit.errors import InputError
from tightfit.media.clip import parse_frames, read_clip
from tightfit.media.frame_folder import read_frame_folder
from tightfit.media.info import probe
from tightfit.media.latents import LatentFile, save_latent
from tightfit.media.outputs import open_frames
from tightfit.testing import toy_vae

CARD = "virtual:1GiB"
VARIED = [0, 33, 66, 400, 433, 900]


def shades(pixels: torch.Tensor) -> list[int]:
    """Which frames of `grey_frames` these are."""
    return (pixels.float().mean((1, 2, 3)) / 8).round().int().tolist()


def test_m09_an_animation_as_a_clip_is_every_frame_whole(tmp_path: Path) -> None:
    """Later frames store a patch of 8x8; each comes as 32x24, with its delay."""
    clip = read_clip(write_patch_gif(tmp_path / "a.gif"))
    assert clip.pixels.shape == (5, 3, 24, 32)
    assert clip.times == pytest.approx([0, 0.08, 0.16, 0.24, 0.32])
    assert [int(frame[0, 8].argmax()) for frame in clip.pixels] == [0, 5, 10, 15, 20]
    assert (clip.pixels[:, 2] > 100).float().mean() > 0.9


def test_m10_a_folder_is_in_natural_order(tmp_path: Path) -> None:
    """2, 10, 11."""
    for at, number in enumerate((2, 10, 11)):
        picture = Image.new("RGB", (64, 48), (80 * at, 0, 0))
        picture.save(tmp_path / f"frame_{number}.png")
    latent = tightfit.encode(tmp_path, vae=toy_vae("V2", width=8), card=CARD).value
    assert latent.frames == 3
    assert read_frame_folder(tmp_path).pixels[:, 0, 0, 0].tolist() == [0, 80, 160]


def test_m10_the_odd_frame_is_named_before_a_model_is_loaded(tmp_path: Path) -> None:
    """So even a VAE that does not exist is not asked for."""
    for number, width in ((2, 64), (10, 64), (11, 65)):
        Image.new("RGB", (width, 48)).save(tmp_path / f"frame_{number}.png")
    with pytest.raises(InputError, match=r"frame_11\.png is 65x48, the others are 64x48"):
        tightfit.encode(tmp_path, vae="random:no-such-vae", card=CARD)


def test_m11_uneven_times_give_the_frames_that_there_are(tmp_path: Path) -> None:
    """Six, with their times; never the 28 of duration times rate."""
    path = write_film(tmp_path / "a.mkv", grey_frames(6, 16, 16), times_ms=VARIED)
    assert probe(path).frames in (None, 6)
    clip = read_clip(path)
    assert shades(clip.pixels) == [0, 1, 2, 3, 4, 5]
    assert clip.times == tuple(time / 1000 for time in VARIED)


def test_m11_frames_at_a_rate_are_picked_by_time(tmp_path: Path) -> None:
    """Ten a second: none is further from its moment than half a step, or it is the one on show."""
    path = write_film(tmp_path / "a.mkv", grey_frames(6, 16, 16), times_ms=VARIED)
    clip = read_clip(path, fps=Fraction(10))
    assert clip.fps == 10
    for tick, shade in enumerate(shades(clip.pixels)):
        near = [abs(time / 1000 - tick / 10) for time in VARIED]
        on_show = max(k for k, time in enumerate(VARIED) if time / 1000 <= tick / 10)
        assert near[shade] <= 0.05 or shade == on_show


@pytest.mark.parametrize(
    ("matrix", "corner"),
    [((0, 1, -1, 0), (0, -1)), ((-1, 0, 0, -1), (-1, -1)), ((0, -1, 1, 0), (-1, 0))],
)
def test_m12_a_turned_film_is_upright(
    tmp_path: Path, matrix: tuple[int, int, int, int], corner: tuple[int, int]
) -> None:
    """The mark of the top left ends where the matrix puts it, and sizes are those of the pixels."""
    frames = np.zeros((2, 32, 64, 3), np.uint8)
    frames[:, :12, :12] = 250
    path = patch_matrix(write_film(tmp_path / "a.mp4", frames), *matrix)
    clip, info = read_clip(path), probe(path)
    assert (info.height, info.width) == tuple(clip.pixels.shape[2:])
    assert clip.pixels.shape[2:] == ((64, 32) if matrix[0] == 0 else (32, 64))
    corners = {(y, x): int(clip.pixels[0, 0, y, x]) for y in (0, -1) for x in (0, -1)}
    assert max(corners, key=lambda place: corners[place]) == corner


@pytest.fixture(scope="module")
def long_film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 frames of 320x240."""
    path = tmp_path_factory.mktemp("long") / "a.mp4"
    options = {"preset": "ultrafast", "g": "10"}
    muxer = {"movflags": "+faststart"}
    return write_film(path, grey_frames(600, 320, 240), options=options, muxer=muxer)


def test_m14_a_part_of_a_long_film_takes_the_memory_of_the_part(long_film: Path) -> None:
    """Seven frames, and less than 64 MB; beside them a few that wait to be converted."""
    tracemalloc.start()
    clip = read_clip(long_film, frames=parse_frames("100:113:2"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert shades(clip.pixels) == [k % 32 for k in range(100, 113, 2)]
    assert peak < 64_000_000
    assert clip.pixels.untyped_storage().nbytes() == 7 * 3 * 240 * 320


def test_m14_the_tail_of_a_film_is_not_read(long_film: Path, tmp_path: Path) -> None:
    """It may as well be missing: so it cannot take time either."""
    data = long_film.read_bytes()
    (tmp_path / "a.mp4").write_bytes(data[: len(data) // 2])
    clip = read_clip(tmp_path / "a.mp4", frames=parse_frames("100:113:2"))
    assert shades(clip.pixels) == [k % 32 for k in range(100, 113, 2)]


def odd_latent(path: Path, frames: int = 5) -> Path:
    """Of a clip of 641x480, from the toy VAE of clips."""
    vae = toy_vae("V3", width=4)
    latent = torch.randn(1, 16, 2, 60, 81) / 4
    save_latent(
        path,
        LatentFile(
            latent=latent,
            vae=vae.traits.name,
            ratio=(4, 8),
            dtype="float32",
            width=641,
            height=480,
            frames=frames,
            fps=Fraction(24),
        ),
    )
    return path


def test_m15_an_odd_size_is_written_and_said(tmp_path: Path) -> None:
    """641x480 as 4:4:4, with all frames."""
    latent, out = odd_latent(tmp_path / "z.safetensors"), tmp_path / "a.mp4"
    done = tightfit.decode(latent, vae=toy_vae("V3", width=4), card=CARD, out=out)
    clip = read_clip(out)
    assert clip.pixels.shape == (5, 3, 480, 641)
    assert any(
        note.startswith("wrote 4:4:4 colour for the odd size") for note in done.report.adjusted
    )


def test_m15_it_is_known_before_decoding(tmp_path: Path) -> None:
    """The notes stand before a frame comes; what cannot be written is refused before a VAE is."""
    with open_frames(tmp_path / "a.mp4", width=641, height=480, frames=3) as writer:
        assert writer.notes[0].startswith("wrote 4:4:4")
        writer.write(torch.zeros(3, 3, 480, 641))
    latent = odd_latent(tmp_path / "z.safetensors")
    code = run(["decode", str(latent), "-o", str(tmp_path / "a.png"), "--vae", "random:no-such"])
    assert code == 2
    assert not (tmp_path / "a.png").exists()
