"""Sound through an encode and a decode: of clips, and by VAEs of sound."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch

import tightfit
from tests.media.makers import grey_frames
from tightfit.cli import run
from tightfit.errors import InputError, UsageError
from tightfit.media.clip_writer import ClipWriter
from tightfit.media.latents import load_latent, save_latent
from tightfit.media.sound import Sound, read_sound, write_sound
from tightfit.testing import toy_vae

CARD = "virtual:1GiB"


def tone(seconds: float, rate: int = 48000, channels: int = 2) -> Sound:
    """A tone that rises, in steps of 16 bits."""
    time = torch.arange(round(seconds * rate)) / rate
    wave = torch.sin(time * (500 + 300 * time)) * 0.7
    return Sound((wave.expand(channels, -1) * 2**15).round() / 2**15, rate)


@pytest.fixture
def film(tmp_path: Path) -> Path:
    """25 frames of 64x48 at 25 a second with a second of sound, lossless both."""
    frames = torch.from_numpy(grey_frames(25, 64, 48)).permute(0, 3, 1, 2)
    with ClipWriter(tmp_path / "in.mkv", 64, 48, Fraction(25), sound=tone(1)) as writer:
        writer.write(frames)
    return tmp_path / "in.mkv"


@pytest.mark.parametrize(
    ("terms", "first", "count"),
    [
        ({}, 0, 48000),
        ({"frames": "5:18"}, 9600, 24960),
        ({"frames": "0:20", "pad": "trim"}, 0, 17 * 1920),
        ({"seconds": "0.2:0.6"}, 9600, 19200),
        ({"fps": "12.5"}, 0, 49920),
    ],
    ids=str,
)
def test_the_sound_of_the_frames_comes_back(
    film: Path, tmp_path: Path, terms: dict[str, str], first: int, count: int
) -> None:
    """Through a latent file, to the sample: for as long as the frames that were coded are shown."""
    vae, out = toy_vae("V3", width=8), tmp_path / "out.mkv"
    made = tightfit.encode(film, vae=vae, card=CARD, **terms)
    save_latent(tmp_path / "z.safetensors", made.value)
    tightfit.decode(tmp_path / "z.safetensors", vae=vae, card=CARD, out=out)
    back = read_sound(out).samples
    assert back.shape == (2, count)
    expected = tone(1).samples[:, first : first + count]
    assert torch.equal(back[:, : expected.shape[1]], expected)
    assert not back[:, expected.shape[1] :].any()


def test_frames_have_their_sound(film: Path) -> None:
    """Also where they are not written."""
    vae = toy_vae("V3", width=8)
    made = tightfit.encode(film, vae=vae, card=CARD)
    frames = tightfit.decode(made.value, vae=vae, card=CARD).value
    assert frames.sound is not None
    assert frames.sound.seconds == frames.pixels.shape[0] / Fraction(25)


def test_a_vae_of_sound_takes_a_file_and_gives_one(tmp_path: Path) -> None:
    """WAV in, FLAC out, of the length that went in; the report says what was added."""
    vae = toy_vae("VA", width=8)
    write_sound(tmp_path / "a.wav", tone(0.5))
    made = tightfit.encode(tmp_path / "a.wav", vae=vae, card=CARD)
    assert made.value.latent.shape == (1, 64, 13)
    assert (made.value.width, made.value.height, made.value.sound_rate) == (24000, 1, 48000)
    assert "padded by 960 samples, trimmed back after decoding" in made.report.adjusted
    assert made.report.input["kind"] == "sound"
    save_latent(tmp_path / "z.safetensors", made.value)
    done = tightfit.decode(tmp_path / "z.safetensors", vae=vae, card=CARD, out=tmp_path / "b.flac")
    assert done.report.output["samples"] == 24000
    back = read_sound(tmp_path / "b.flac")
    assert back.samples.shape == (2, 24000)
    assert back.rate == 48000
    assert done.value.sound is not None
    assert (back.samples - done.value.sound.samples.clamp(-1, 1)).abs().max() < 1e-6


def test_a_tensor_of_sound_is_encoded(tmp_path: Path) -> None:
    """[C,L], as it is."""
    vae = toy_vae("VA", width=8)
    samples = tone(0.2).samples
    made = tightfit.encode(samples, vae=vae, card=CARD).value
    back = tightfit.decode(made, vae=vae, card=CARD).value.sound
    assert back is not None
    assert back.samples.shape == samples.shape


def test_a_part_of_a_file_and_the_sound_of_a_film_are_encoded(film: Path) -> None:
    """By seconds; mono is mixed to what the VAE takes, and said."""
    vae = toy_vae("VA", width=8)
    made = tightfit.encode(film, vae=vae, card=CARD, seconds="0.25:0.5").value
    assert made.width == 12000
    mono = film.with_name("mono.wav")
    write_sound(mono, tone(0.1, channels=1))
    done = tightfit.encode(mono, vae=vae, card=CARD)
    assert "sound of 1 channels mixed to 2" in done.report.adjusted


def test_sound_and_pictures_are_not_mixed_up(film: Path, tmp_path: Path) -> None:
    """Each is refused with what to give instead."""
    write_sound(tmp_path / "a.wav", tone(0.1))
    with pytest.raises(UsageError, match="give --vae one of sound"):
        tightfit.encode(tmp_path / "a.wav", vae=toy_vae("V2"), card=CARD)
    with pytest.raises(UsageError, match="pick frames of a clip"):
        tightfit.encode(tmp_path / "a.wav", vae=toy_vae("VA"), card=CARD, frames="0:5")
    with ClipWriter(tmp_path / "mute.mkv", 16, 16, Fraction(24)) as writer:
        writer.write(torch.zeros(2, 3, 16, 16))
    with pytest.raises(InputError, match="holds none"):
        tightfit.encode(tmp_path / "mute.mkv", vae=toy_vae("VA"), card=CARD)


def test_the_command_line_puts_another_sound_to_a_film(film: Path, tmp_path: Path) -> None:
    """From its beginning; what holds no sound is refused before a VAE is looked for."""
    latent, song = tmp_path / "z.safetensors", tmp_path / "song.flac"
    made = tightfit.encode(film, vae="mini:wan2.1-vae", card="cpu", frames="0:1").value
    save_latent(latent, made)
    write_sound(song, tone(3, 44100, 1))
    words = ["decode", str(latent), "--vae", "mini:wan2.1-vae", "--card", "cpu", "-q"]
    assert run([*words, "-o", str(tmp_path / "out.mkv"), "--sound", str(song)]) == 0
    back = read_sound(tmp_path / "out.mkv")
    assert torch.equal(back.samples, tone(3, 44100, 1).samples[:, : 44100 // 25])
    words[3] = "random:nothing"
    assert run([*words, "-o", str(tmp_path / "out.gif"), "--sound", str(song)]) == 2
    assert run([*words, "-o", str(tmp_path / "out.mp4"), "--sound", str(latent)]) == 2
    assert run([*words, "-o", str(tmp_path / "out.wav")]) == 2
    assert load_latent(latent).sound is not None
